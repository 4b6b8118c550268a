"""What a refused request held is free as soon as it is answered, without the garbage collector.

The collector stops all threads, and many large requests at once take it a tenth of a second.
"""

import gc
from collections.abc import Iterator

import pytest

from service.core.types import NewInstance
from service.engine.writing.write_queue import WriteJob
from service.http.request_models.instances import InstanceBody
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
    before = held()  # what other tests of this process keep
    known = {id(thing) for thing in before}
    instances = [{"query": f"query {number}", "labels": LABELS} for number in range(clicks)]
    answer = service.request("POST", "/instances", json={"instances": instances})
    assert answer.status_code == 422
    # threads still return from their last call
    wait_for(lambda: not [thing for thing in held() if id(thing) not in known])


def held() -> list[object]:
    """Requests in memory; `isinstance` would load modules that others load lazily."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), KINDS)]
