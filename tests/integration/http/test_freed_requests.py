"""A refused request's memory is freed with its answer, without the garbage collector.

The collector stops all threads; for many large requests it takes a tenth of a second.
"""

import gc
from collections.abc import Iterator

import pytest

from service.core.types import NewInstance
from service.engine.writing.operations import WriteJob
from service.http.request_models import InstanceBody
from tests.support.serving import LocalService
from tests.support.waiting import wait_for

KINDS = (InstanceBody, NewInstance, WriteJob)
LABELS = [f"no label {number}" for number in range(20)]


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("clicks", [1, 200], ids=["small", "large"])
def test_refused_clicks_are_freed(service: LocalService, clicks: int) -> None:
    before = held()  # objects that other tests keep
    known = {id(thing) for thing in before}
    instances = [{"query": f"query {number}", "labels": LABELS} for number in range(clicks)]
    answer = service.request("POST", "/instances", json={"instances": instances})
    assert answer.status_code == 422
    # Other threads may not have returned from their last call yet.
    wait_for(lambda: not [thing for thing in held() if id(thing) not in known])


def held() -> list[object]:
    """Return all requests in memory; `isinstance` would trigger lazy imports."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), KINDS)]
