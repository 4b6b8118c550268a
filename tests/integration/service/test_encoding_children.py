"""Child processes that encode posted texts: the same vectors, and replacement when they die."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.encoding.representer import Representer
from service.core.errors import NotReady
from service.core.replay import texts_of
from service.core.types import NewInstance, NewLabel
from service.engine.encoder_pool import EncoderPool, EncoderProcess
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.encoder import DIMENSION

ITEMS = [
    NewLabel(id="axe", text="ice axe", queries=("climbing", "größere Axt ☕")),
    NewInstance(query="grainger", labels=("axe",)),
    NewLabel(id="rope", text="rope"),
]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle")


@pytest.fixture
def children(bundle: Path) -> Iterator[EncoderPool]:
    two = EncoderPool(bundle, most=2)
    yield two
    two.close()


def kill(child: EncoderProcess) -> None:
    child._process.kill()
    child._process.wait()


def running(children: EncoderPool) -> list[EncoderProcess]:
    """The idle processes of a pool, which stay idle."""
    idle = [children._idle.get() for _ in range(children._idle.qsize())]
    for child in idle:
        children._idle.put(child)
    return idle


def test_a_child_encodes_as_the_service_does(bundle: Path, children: EncoderPool) -> None:
    encoder = OnnxEncoder(bundle, open_bundle(bundle).manifest.encoder)

    encoded = children.encode(ITEMS, dimension=DIMENSION)

    assert [len(item.rows) for item in encoded] == [3, 1, 1]
    expected = Representer(encoder).encode([texts_of(item) for item in ITEMS])
    for item, expected_item in zip(encoded, expected, strict=True):
        assert np.array_equal(item.rows, expected_item.rows)


@pytest.mark.slow
def test_each_of_several_threads_gets_its_own_items(children: EncoderPool) -> None:
    labels = [NewLabel(id=str(number), text=f"label {number}") for number in range(40)]
    assert len(running(children)) == 1
    alone = [children.encode([label], dimension=DIMENSION)[0] for label in labels]

    with ThreadPoolExecutor(8) as pool:
        together = pool.map(lambda label: children.encode([label], dimension=DIMENSION), labels)

        assert all(
            np.array_equal(one.rows, two[0].rows) for one, two in zip(alone, together, strict=True)
        )
    assert len(running(children)) == 2


def test_a_killed_child_is_replaced_without_an_error(children: EncoderPool) -> None:
    before = children.encode(ITEMS, dimension=DIMENSION)
    for child in running(children):
        kill(child)

    after = children.encode(ITEMS, dimension=DIMENSION)

    assert all(np.array_equal(one.rows, two.rows) for one, two in zip(before, after, strict=True))


def test_items_are_refused_where_every_child_dies(children: EncoderPool, bundle: Path) -> None:
    for child in running(children):
        kill(child)
    (bundle / "encoder.onnx").rename(bundle / "gone")

    with pytest.raises(NotReady, match="cannot be encoded at the moment"):
        children.encode(ITEMS, dimension=DIMENSION)

    (bundle / "gone").rename(bundle / "encoder.onnx")
    assert len(children.encode(ITEMS, dimension=DIMENSION)) == 3


def test_closing_ends_idle_children(bundle: Path) -> None:
    children = EncoderPool(bundle, most=2)
    both = running(children)

    children.close()

    assert [child._process.poll() for child in both] == [-signal.SIGKILL]


def test_what_was_admitted_before_a_reload_is_still_encoded(bundle: Path) -> None:
    children = EncoderPool(bundle, most=1)
    before = children.encode(ITEMS, dimension=DIMENSION)
    children.close()

    after = children.encode(ITEMS, dimension=DIMENSION)

    assert all(np.array_equal(one.rows, two.rows) for one, two in zip(before, after, strict=True))
    assert not running(children)


def service_children(service: LocalService) -> list[EncoderProcess]:
    return running(service.engine._encoding._pool)


def test_the_service_goes_on_when_its_children_are_killed(bundle: Path, tmp_path: Path) -> None:
    with local_service(bundle, tmp_path / "state") as service:
        assert service.post("/labels", {"labels": [{"text": "ice axe"}]}).status_code == 200
        for child in service_children(service):
            kill(child)
        assert service.post("/labels", {"labels": [{"text": "rope"}]}).status_code == 200

        (bundle / "encoder.onnx").rename(bundle / "gone")
        for child in service_children(service):
            kill(child)
        assert_problem(service.post("/labels", {"labels": [{"text": "snow saw"}]}), 503)
        assert service.post("/predict", {"queries": ["rope"]}).status_code == 200
        assert service.get("/labels/snow saw").status_code == 404

        (bundle / "gone").rename(bundle / "encoder.onnx")
        assert service.post("/labels", {"labels": [{"text": "snow saw"}]}).status_code == 200


def test_a_reload_starts_new_children(tmp_path: Path) -> None:
    first, second = (make_bundle(tmp_path / "shelf" / name) for name in ("first", "second"))
    with local_service(first, tmp_path / "state") as service:
        former = service_children(service)
        assert service.post("/admin/reload", {"bundle": "second"}).status_code == 200
        assert service.post("/labels", {"labels": [{"text": "ice axe"}]}).status_code == 200

        assert service.engine._encoding._pool.folder == second
        for child in former:
            assert child._process.wait(30) == -signal.SIGKILL
