"""Child processes that encode posted texts return the same vectors and are replaced if they die."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.encoding.representer import EncodedItem, Representer
from service.core.errors import NotReady
from service.core.replay import texts_of
from service.core.types import NewInstance, NewLabel
from service.engine.encoder_pool import MOST_DEATHS, EncoderPool
from tests.support.children import child_processes
from tests.support.http.problems import assert_problem
from tests.support.serving import local_service, wait_for
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.encoder import DIMENSION
from tests.support.waiting import READY_WITHIN

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

CHILD = "service.core.encoding.child"
ITEMS = [
    NewLabel(id="axe", text="ice axe", queries=("climbing", "größere Axt ☕")),
    NewInstance(query="grainger", labels=("axe",)),
    NewLabel(id="rope", text="rope"),
]
# With this many texts, the service uses a child process.
MANY = {"labels": [{"text": f"rope of {metres} metres"} for metres in range(20)]}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle")


@pytest.fixture
def pool(bundle: Path) -> Iterator[EncoderPool]:
    two = EncoderPool(bundle, most=2, niceness=5, patience=30)
    two.wait_until_warm()
    yield two
    two.close()


def submit(pool: EncoderPool, *items: NewLabel | NewInstance) -> Future[list[EncodedItem]]:
    future = pool.submit(items, dimension=DIMENSION)
    assert future is not None
    return future


def children() -> list[int]:
    return child_processes(os.getpid(), CHILD)


def kill_children() -> None:
    for child in children():
        os.kill(child, signal.SIGKILL)


def assert_same(first: list[EncodedItem], second: list[EncodedItem]) -> None:
    assert all(np.array_equal(one.rows, two.rows) for one, two in zip(first, second, strict=True))


def test_a_child_encodes_as_the_service_does(bundle: Path, pool: EncoderPool) -> None:
    encoder = OnnxEncoder(bundle, open_bundle(bundle).manifest.encoder)

    encoded = submit(pool, *ITEMS).result(30)

    assert [len(item.rows) for item in encoded] == [3, 1, 1]
    assert_same(encoded, Representer(encoder).encode([texts_of(item) for item in ITEMS]))


def test_a_child_has_the_niceness_that_was_asked_for(pool: EncoderPool) -> None:
    [child] = children()
    assert os.getpriority(os.PRIO_PROCESS, child) == os.getpriority(os.PRIO_PROCESS, 0) + 5
    assert os.sched_getscheduler(child) == os.SCHED_OTHER  # with SCHED_IDLE it would starve


def test_further_children_start_when_all_are_busy(pool: EncoderPool) -> None:
    labels = [NewLabel(id=str(number), text=f"label {number}") for number in range(40)]
    alone = [submit(pool, label).result(30) for label in labels]
    assert len(children()) == 1

    together = [submit(pool, label) for label in labels]

    wait_for(lambda: len(children()) == 2)
    for encoded, future in zip(alone, together, strict=True):
        assert_same(encoded, future.result(30))


def test_a_killed_child_is_replaced_without_an_error(pool: EncoderPool) -> None:
    before = submit(pool, *ITEMS).result(30)
    kill_children()
    assert_same(before, submit(pool, *ITEMS).result(30))


def test_chunks_do_not_wait_for_a_replacement(pool: EncoderPool, bundle: Path) -> None:
    wait([submit(pool, *ITEMS) for _ in range(40)])
    first, second = wait_for(lambda: len(children()) == 2 and pool._warm == 2 and children())
    # Without the encoder file no child can start.
    (bundle / "encoder.onnx").rename(bundle / "gone")
    os.kill(first, signal.SIGKILL)

    for _ in range(20):
        assert len(submit(pool, *ITEMS).result(30)) == 3

    assert second in children()


def test_what_is_cancelled_before_it_is_begun_is_skipped(pool: EncoderPool) -> None:
    futures = [submit(pool, *ITEMS) for _ in range(40)]
    cancelled = [future for future in futures if future.cancel()]
    assert cancelled
    for future in futures:
        if future not in cancelled:
            assert len(future.result(30)) == 3
    assert len(submit(pool, *ITEMS).result(30)) == 3


def test_items_over_which_children_keep_dying_are_refused(pool: EncoderPool, monkeypatch) -> None:
    def deadly(*_arguments: object, **_options: object) -> None:
        raise BrokenPipeError("the encoding child ended with -11")

    with monkeypatch.context() as broken:
        broken.setattr("service.engine.encoder_pool.EncoderProcess.encode", deadly)
        with pytest.raises(NotReady, match="cannot be encoded at the moment"):
            submit(pool, *ITEMS).result(60)
    assert MOST_DEATHS == 2
    assert len(submit(pool, *ITEMS).result(30)) == 3


def test_items_are_refused_where_no_child_can_be_started(pool: EncoderPool, bundle: Path) -> None:
    (bundle / "encoder.onnx").rename(bundle / "gone")
    kill_children()

    with pytest.raises(NotReady, match="cannot be encoded at the moment"):
        submit(pool, *ITEMS).result(30)

    (bundle / "gone").rename(bundle / "encoder.onnx")
    assert len(submit(pool, *ITEMS).result(30)) == 3


def test_a_pool_whose_first_child_cannot_be_started_says_so(bundle: Path) -> None:
    (bundle / "encoder.onnx").unlink()
    pool = EncoderPool(bundle, most=2, niceness=5, patience=30)
    with pytest.raises(NotReady, match="texts cannot be encoded: the encoding child ended with 1"):
        pool.wait_until_warm()
    pool.close()


def test_a_start_that_fails_refuses_only_what_it_was_begun_for(
    bundle: Path, pool: EncoderPool
) -> None:
    (bundle / "encoder.onnx").rename(bundle / "gone")
    begun = monotonic()
    with pool._changed:  # as if all children had died
        pool._warm = 0
        late = pool.submit(ITEMS, dimension=DIMENSION)
        pool._note_failure("the child ended", begun)
        pool._warm = 1
    (bundle / "gone").rename(bundle / "encoder.onnx")

    assert late is not None
    assert len(late.result(30)) == 3


def test_closing_encodes_what_was_taken_and_ends_the_children(bundle: Path) -> None:
    pool = EncoderPool(bundle, most=2, niceness=5, patience=30)
    taken = submit(pool, *ITEMS)

    pool.close(seconds=READY_WITHIN)

    assert len(taken.result(0)) == 3
    assert not children()
    assert pool.submit(ITEMS, dimension=DIMENSION) is None


def test_a_ready_service_has_a_warm_child(bundle: Path, tmp_path: Path) -> None:
    with local_service(bundle, tmp_path / "state", children=True) as service:
        assert len(children()) == 1
        assert service.engine._encoding.warm


def test_the_service_goes_on_when_its_children_are_killed(bundle: Path, tmp_path: Path) -> None:
    with local_service(
        bundle, tmp_path / "state", children=True, write_deadline_ms=60_000
    ) as service:
        assert service.post("/labels", MANY).status_code == 200
        kill_children()
        assert service.post("/labels", _named("axe")).status_code == 200

        (bundle / "encoder.onnx").rename(bundle / "gone")
        kill_children()
        assert_problem(service.post("/labels", _named("saw")), 503)
        assert service.post("/predict", {"queries": ["rope"]}).status_code == 200
        assert service.get("/labels/saw 3").status_code == 404
        # The service encodes few texts without a child.
        assert service.post("/labels", {"labels": [{"text": "ice axe"}]}).status_code == 200

        (bundle / "gone").rename(bundle / "encoder.onnx")
        assert service.post("/labels", _named("saw")).status_code == 200


def test_a_reload_starts_new_children(tmp_path: Path) -> None:
    first, second = (make_bundle(tmp_path / "shelf" / name) for name in ("first", "second"))
    with local_service(first, tmp_path / "state", children=True) as service:
        [former] = children()
        assert service.post("/admin/reload", {"bundle": "second"}).status_code == 200
        assert service.engine._encoding._pool.folder == second
        wait_for(lambda: former not in children())
        assert len(children()) == 1
        assert service.post("/labels", MANY).status_code == 200


def test_a_reload_that_fails_keeps_the_children(tmp_path: Path, monkeypatch) -> None:
    first, _ = (make_bundle(tmp_path / "shelf" / name) for name in ("first", "second"))
    with local_service(first, tmp_path / "state", children=True) as service:
        before = children()
        with monkeypatch.context() as broken:
            broken.setattr(service.engine._writer, "switch_to", _refused)
            assert_problem(service.post("/admin/reload", {"bundle": "second"}), 503)
        wait_for(lambda: children() == before)
        assert service.post("/labels", MANY).status_code == 200


def test_what_was_admitted_before_a_reload_is_written(tmp_path: Path) -> None:
    first, _ = (make_bundle(tmp_path / "shelf" / name) for name in ("first", "second"))
    with local_service(first, tmp_path / "state", children=True) as service:
        former = service.engine.loaded
        assert service.post("/admin/reload", {"bundle": "second"}).status_code == 200
        service.engine._writes._loaded = lambda: former  # as for a request begun earlier
        assert service.post("/labels", MANY).status_code == 200
        assert service.get("/labels/rope of 7 metres").status_code == 200


def _named(word: str) -> dict[str, list[dict[str, str]]]:
    return {"labels": [{"text": f"{word} {number}"} for number in range(20)]}


def _refused(*_arguments: object, **_options: object) -> None:
    raise NotReady("the writer has stopped")
