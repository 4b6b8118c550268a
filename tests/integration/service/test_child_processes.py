"""Child processes return the service's own vectors, are replaced if they die or stop, and end.

A child is stopped by SIGSTOP.
"""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import httpx
import numpy as np
import orjson
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.encoding.representer import EncodedItem, Representer
from service.core.errors import NotReady, SealError
from service.core.index.libraries import IndexParameters
from service.core.memory.segment_store import SegmentStore
from service.core.replay import texts_of
from service.core.types import NewInstance, NewLabel
from service.engine.encoder_pool import EncoderPool
from service.server.worker import MARGIN_SECONDS
from tests.support.children import child_processes
from tests.support.http.problems import assert_problem
from tests.support.serving import ServerProcess, local_service, wait_for
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


def children(parent: int | None = None) -> list[int]:
    return child_processes(parent or os.getpid(), CHILD)


def assert_same(first: list[EncodedItem], second: list[EncodedItem]) -> None:
    assert all(np.array_equal(one.rows, two.rows) for one, two in zip(first, second, strict=True))


def signal_children(number: signal.Signals, parent: int | None = None) -> list[int]:
    found = children(parent)
    for child in found:
        os.kill(child, number)
    return found


kill_children = partial(signal_children, signal.SIGKILL)
stop_children = partial(signal_children, signal.SIGSTOP)


@contextmanager
def all_stopped() -> Iterator[None]:
    """Stop every child as soon as there is one."""
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(0.01):
            try:
                stop_children()
            except ProcessLookupError:
                continue

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def warm_pool(bundle: Path, *, patience: float) -> Iterator[EncoderPool]:
    pool = EncoderPool(bundle, most=1, niceness=5, patience=patience, starting_seconds=3)
    pool.wait_until_warm()
    try:
        yield pool
    finally:
        pool.close()


def _named(word: str) -> dict[str, list[dict[str, str]]]:
    return {"labels": [{"text": f"{word} {number}"} for number in range(20)]}


def _refused(*_arguments: object, **_options: object) -> None:
    raise NotReady("the writer has stopped")


# The pool --------------------------------------------------------------------------------


def test_a_child_encodes_as_the_service_does_with_the_niceness_that_was_asked_for(
    bundle: Path, pool: EncoderPool
) -> None:
    encoder = OnnxEncoder(bundle, open_bundle(bundle).manifest.encoder)

    encoded = submit(pool, *ITEMS).result(30)

    assert [len(item.rows) for item in encoded] == [3, 1, 1]
    assert_same(encoded, Representer(encoder).encode([texts_of(item) for item in ITEMS]))
    [child] = children()
    niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    assert os.getpriority(os.PRIO_PROCESS, child) == niceness
    assert os.sched_getscheduler(child) == os.SCHED_OTHER  # with SCHED_IDLE it would starve


def test_further_children_start_when_all_are_busy(pool: EncoderPool) -> None:
    labels = [NewLabel(id=str(number), text=f"label {number}") for number in range(40)]
    alone = [submit(pool, label).result(30) for label in labels]
    assert len(children()) == 1

    together = [submit(pool, label) for label in labels]

    wait_for(lambda: len(children()) == 2)
    for encoded, future in zip(alone, together, strict=True):
        assert_same(encoded, future.result(30))


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


def test_a_stopped_child_is_replaced_and_its_work_done_again(bundle: Path) -> None:
    with warm_pool(bundle, patience=6) as pool:
        [stopped] = stop_children()
        assert len(submit(pool, *ITEMS).result(30)) == 3
        assert stopped not in children()
        assert pool.warm


def test_work_over_which_children_keep_stopping_is_refused(bundle: Path) -> None:
    with warm_pool(bundle, patience=1) as pool:
        stop_children()
        with all_stopped(), pytest.raises(NotReady, match="cannot be encoded at the moment"):
            submit(pool, *ITEMS).result(30)


def test_a_child_that_stops_while_it_starts_is_given_up(bundle: Path) -> None:
    pool = EncoderPool(bundle, most=1, niceness=5, patience=5, starting_seconds=0.5)
    with all_stopped(), pytest.raises(NotReady, match="did not answer in its time"):
        pool.wait_until_warm()
    pool.close()
    assert not children()


def test_closing_ends_a_stopped_child_and_refuses_its_work(bundle: Path) -> None:
    with warm_pool(bundle, patience=600) as pool:
        stop_children()
        waiting = [submit(pool, *ITEMS) for _ in range(3)]
        sleep(0.1)
        start = monotonic()
        pool.close(seconds=0.5)
        assert monotonic() - start < 3
        assert not children()
        for future in waiting:
            with pytest.raises(NotReady):
                future.result(5)


# The service -----------------------------------------------------------------------------


@pytest.mark.parametrize("end", [kill_children, stop_children], ids=["killed", "stopped"])
def test_the_service_goes_on_without_its_children(
    bundle: Path, tmp_path: Path, end: Callable[[], object]
) -> None:
    with local_service(
        bundle, tmp_path / "state", children=True, write_deadline_ms=8_000
    ) as service:
        assert len(children()) == 1
        end()
        assert service.post("/labels", MANY).status_code == 200
        assert service.get("/health/ready").json()["writes"] == "accepted"

        (bundle / "encoder.onnx").rename(bundle / "gone")
        end()
        assert_problem(service.post("/labels", _named("saw")), 503)
        assert service.get("/health/ready").json() == {"status": "ready", "writes": "limited"}
        assert service.post("/predict", {"queries": ["rope"]}).status_code == 200
        assert service.get("/labels/saw 3").status_code == 404
        # The service encodes few texts without a child.
        assert service.post("/labels", {"labels": [{"text": "ice axe"}]}).status_code == 200

        (bundle / "gone").rename(bundle / "encoder.onnx")
        assert service.post("/labels", _named("saw")).status_code == 200
        assert service.get("/health/ready").json()["writes"] == "accepted"


def test_a_reload_starts_new_children_unless_it_fails(tmp_path: Path, monkeypatch) -> None:
    first, second = (make_bundle(tmp_path / "shelf" / name) for name in ("first", "second"))
    with local_service(first, tmp_path / "state", children=True) as service:
        former, before = service.engine.loaded, children()
        with monkeypatch.context() as broken:
            broken.setattr(service.engine._writer, "switch_to", _refused)
            assert_problem(service.post("/admin/reload", {"bundle": "second"}), 503)
        wait_for(lambda: children() == before)
        assert service.post("/labels", _named("axe")).status_code == 200

        assert service.post("/admin/reload", {"bundle": "second"}).status_code == 200
        assert service.engine._encoding._pool.folder == second
        wait_for(lambda: before[0] not in children())
        assert len(children()) == 1
        assert service.post("/labels", _named("saw")).status_code == 200

        service.engine._writes._loaded = lambda: former  # as for a request begun earlier
        assert service.post("/labels", MANY).status_code == 200
        assert service.get("/labels/rope of 7 metres").status_code == 200


def test_the_end_comes_in_time_though_a_child_stops(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    config = tmp_path / "keymatch.toml"
    # The deadline is so long that the child is not replaced before the end.
    config.write_text("[server]\nshutdown_seconds = 1\n[engine]\nwrite_deadline_ms = 600000\n")
    server = start("--config", str(config))
    stopped = stop_children(server.process.pid)
    assert stopped
    with ThreadPoolExecutor(1) as aside:
        answer = aside.submit(
            httpx.post, f"http://127.0.0.1:{server.port}/labels", json=MANY, timeout=60
        )
        wait_for(lambda: len(children(server.process.pid)) or answer.done())
        sleep(0.5)
        stop_children(server.process.pid)
        begun = monotonic()
        server.stop()
        seconds = monotonic() - begun
    assert seconds < 1 + MARGIN_SECONDS + 1
    assert_problem(answer.result(), 503)
    assert not server.logged("Exception in ASGI application")
    assert not server.logged("defect")
    for child in stopped:
        wait_for(lambda child=child: not Path(f"/proc/{child}").exists())


def test_the_end_comes_in_time_though_the_first_child_never_starts(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    config = tmp_path / "keymatch.toml"
    config.write_text("[server]\nshutdown_seconds = 1\n")
    server = start("--config", str(config), wait=False)
    [child] = wait_for(lambda: stop_children(server.process.pid))
    begun = monotonic()
    assert server.stop() != 0
    assert monotonic() - begun < 1 + MARGIN_SECONDS + 1
    assert server.logged("the service does not end in time; its child processes are killed")
    wait_for(lambda: not Path(f"/proc/{child}").exists())


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_stopped_processes_do_not_outlive_a_killed_service(
    start: Callable[..., ServerProcess], workers: int
) -> None:
    server = start("--workers", str(workers))
    wait_for(lambda: len(server.workers) == workers)
    stopped = [child for worker in server.workers for child in stop_children(worker)]
    assert len(stopped) == workers
    for worker in server.workers:
        os.kill(worker, signal.SIGSTOP)
    server.kill()
    for process in (*stopped, *server.workers):
        wait_for(lambda process=process: not Path(f"/proc/{process}").exists())


# Segments --------------------------------------------------------------------------------


def test_a_stopped_build_does_not_outlive_a_killed_service(tmp_path: Path) -> None:
    """A process that only builds a segment stands for the service."""
    vectors = np.random.default_rng(0).standard_normal((400_000, 4)).astype(np.float16)
    np.save(tmp_path / "vectors.npy", vectors)
    (tmp_path / "parameters.json").write_bytes(orjson.dumps(asdict(IndexParameters())))
    command = [sys.executable, "-m", "service.core.memory.build_segment", str(tmp_path)]
    service = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run({command})"]
    )
    building = "service.core.memory.build_segment"
    [child] = wait_for(lambda: child_processes(service.pid, building))
    wait_for(lambda: os.sched_getscheduler(child) == os.SCHED_IDLE)  # it has lowered its priority
    os.kill(child, signal.SIGSTOP)
    service.kill()
    service.wait()
    wait_for(lambda: not Path(f"/proc/{child}").exists())


def test_a_lock_that_another_process_keeps_does_not_keep_the_sealer(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path)
    with (tmp_path / "build.lock").open("w") as kept, ThreadPoolExecutor(1) as aside:
        fcntl.flock(kept, fcntl.LOCK_EX)
        building = aside.submit(store.build, "key", np.zeros((2, 4), np.float16), IndexParameters())
        sleep(0.3)
        assert not building.done()
        store.interrupt()
        with pytest.raises(SealError, match="stopping"):
            building.result(5)
