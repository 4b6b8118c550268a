"""The child that writes a snapshot: its CPU share, time limit, progress and cancellation."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from service.core.errors import Busy
from service.engine.snapshot_file import FILE_NAME, SnapshotFile, SnapshotProgress
from tests.support.children import child_processes
from tests.support.commands import complaint, run
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service, wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

SNAPSHOT = "/admin/snapshot"
SOON = {"bundle": "soon"}


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads
        for child in child_processes(os.getpid(), "snapshot"):
            os.kill(child, signal.SIGKILL)


def stopped_snapshot(
    service: LocalService, aside: ThreadPoolExecutor
) -> tuple[int, Future[httpx.Response]]:
    """Request a snapshot and stop its child; return the child's id and the future of the answer."""
    answer = aside.submit(service.post, SNAPSHOT, SOON)
    [child] = wait_for(lambda: child_processes(os.getpid(), "snapshot"))
    os.kill(child, signal.SIGSTOP)
    return child, answer


def state_of(service: LocalService) -> dict | None:
    return service.get("/info").json()["snapshot"]


def names(shelf: Path) -> set[str]:
    return {path.name for path in shelf.iterdir()}


def test_a_snapshot_is_seen_and_given_up(
    served: LocalService, shelf: Path, aside: ThreadPoolExecutor
) -> None:
    assert served.request("DELETE", SNAPSHOT).json() == {"bundle": None}
    _, answer = stopped_snapshot(served, aside)
    state = state_of(served)
    assert state is not None
    assert (state["bundle"], state["version"], state["of_rows"]) == ("soon", 0, 0)
    assert_problem(served.post(SNAPSHOT, {"bundle": "second"}), 409)
    assert served.post("/labels", {"labels": [{"text": "axe"}]}).json()["version"] == 1

    assert served.request("DELETE", SNAPSHOT).json() == {"bundle": "soon"}

    problem = assert_problem(answer.result(30), 409)
    assert problem["title"] == "Cancelled"
    assert state_of(served) is None
    assert names(shelf) == {"tiny", "other"}
    assert served.post(SNAPSHOT, SOON).status_code == 200
    assert names(shelf) == {"tiny", "other", "soon"}


def test_a_snapshot_keeps_a_share_of_a_busy_processor(
    served: LocalService, aside: ThreadPoolExecutor
) -> None:
    child, answer = stopped_snapshot(served, aside)
    os.kill(child, signal.SIGCONT)
    niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 8)  # 8 is a CPU share of 0.15
    wait_for(lambda: os.getpriority(os.PRIO_PROCESS, child) == niceness)
    assert os.sched_getscheduler(child) == os.SCHED_OTHER
    assert answer.result(60).status_code == 200


def test_a_snapshot_that_takes_too_long_is_given_up(
    shelf: Path, tmp_path: Path, aside: ThreadPoolExecutor
) -> None:
    with local_service(shelf / "tiny", tmp_path / "state", snapshot_seconds=1) as service:
        _, answer = stopped_snapshot(service, aside)
        (shelf / ".soon.partial-1" / "segments").mkdir(parents=True)  # a killed child leaves it
        assert_problem(answer.result(30), 503)
        assert state_of(service) is None
        assert names(shelf) == {"tiny", "other"}


def test_another_process_sees_it_writes_none_and_gives_it_up(
    served: LocalService, shelf: Path, tmp_path: Path, aside: ThreadPoolExecutor
) -> None:
    child, answer = stopped_snapshot(served, aside)
    with local_service(shelf / "tiny", tmp_path / "elsewhere") as other:
        assert state_of(other)["bundle"] == "soon"
        assert_problem(other.post(SNAPSHOT, {"bundle": "second"}), 409)
        by_hand = ("--bundle", shelf / "tiny", "--out", shelf / "third")
        state = ("--state", tmp_path / "elsewhere")
        said = complaint(run("service", "snapshot", *by_hand, *state))
        assert "a snapshot is being written" in said
        assert other.request("DELETE", SNAPSHOT).json() == {"bundle": "soon"}
        os.kill(child, signal.SIGCONT)
        assert_problem(answer.result(60), 409)
    assert names(shelf) == {"tiny", "other"}


def test_what_a_killed_service_left_behind_is_no_snapshot(shelf: Path) -> None:
    file = SnapshotFile(shelf)
    (shelf / FILE_NAME).write_text("{")
    assert file.read() is None
    with file.only_one(), file.kept(SnapshotProgress(bundle="next", version=7)):
        seen = SnapshotFile(shelf).read()
        assert seen is not None and (seen.bundle, seen.version) == ("next", 7)
        with pytest.raises(Busy), SnapshotFile(shelf).only_one():
            pass
    assert names(shelf) == {"tiny", "other"}
