"""The log's files, pages, disk and clock change or fail while the service runs.

The service acknowledges no write that a restart would not find or would refuse.
"""

import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from service.core.label_log import open_log
from service.core.label_log.maintenance.check import verify
from tests.support.disks import FailingDisk
from tests.support.disks import failing_disk as failing_disk
from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.label_logs import Place
from tests.support.serving import LocalService, ServerProcess, server_process, wait_for

READY = "/health/ready"
EVERY_60_MS = 0.001
HOUR = 3600.0


def put(service: LocalService | ServerProcess, name: str) -> httpx.Response:
    """Put a label with an idempotency key."""
    post = service.post if isinstance(service, LocalService) else service.client.post
    labels = {"labels": [{"id": name, "text": f"a good {name}"}]}
    return post("/labels", json=labels, headers={"idempotency-key": name})


def removed(state: Path) -> None:
    for path in state.glob("labels.sqlite*"):
        path.unlink()


def without_wal(state: Path) -> None:
    (state / "labels.sqlite-wal").unlink()


def without_shm(state: Path) -> None:
    (state / "labels.sqlite-shm").unlink()


def replaced_by_a_copy(state: Path) -> None:
    shutil.copy(state / "labels.sqlite", state / "copy")
    (state / "copy").replace(state / "labels.sqlite")


@pytest.mark.parametrize("attack", [removed, without_wal, without_shm, replaced_by_a_copy])
def test_no_write_is_acknowledged_once_a_file_was_removed_or_replaced(
    service: LocalService, tmp_path: Path, attack: Callable[[Path], None]
) -> None:
    assert put(service, "before").status_code == 200
    assert service.get(READY).status_code == 200

    attack(tmp_path / "state")

    answer = put(service, "after")
    assert_problem(answer, 503)
    assert_no_internals(answer)
    problem = assert_problem(service.get(READY), 503)
    assert "the label log was replaced" in problem["detail"]
    assert service.get("/health/live").status_code == 200  # a restart would lose events
    assert service.post("/predict", {"queries": ["before"]}).status_code == 200
    assert service.get("/labels/before").status_code == 200
    assert service.get("/labels/after").status_code == 404


def test_files_that_are_put_back_are_written_again(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server, state = start(), tmp_path / "state"
    assert put(server, "before").status_code == 200
    (state / "labels.sqlite").rename(state / "aside")
    assert_problem(put(server, "meanwhile"), 503)

    (state / "aside").rename(state / "labels.sqlite")

    assert put(server, "after").status_code == 200
    assert server.client.get(READY).json()["writes"] == "accepted"
    server.kill()
    assert Place(state).ids() == ["before", "after"]


@pytest.mark.slow  # four starts of a process
def test_no_write_is_acknowledged_after_an_older_copy_was_written_over_the_log(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    """`cp` overwrites a file and keeps its inode. A stopped service leaves only the main file."""
    older, log = tmp_path / "older", tmp_path / "state" / "labels.sqlite"
    for count in (100, 200):
        server = start()
        labels = [{"id": f"{count}-{number}", "text": "text"} for number in range(100)]
        assert server.client.post("/labels", json={"labels": labels}).status_code == 200
        assert server.stop() == 0
        if count == 100:
            shutil.copy(log, older)
    server = start()
    assert put(server, "before").status_code == 200

    subprocess.run(["cp", older, log], check=True)

    answer = put(server, "after")
    assert_problem(answer, 503)
    assert_no_internals(answer)
    problem = assert_problem(server.client.get(READY), 503)
    assert "the label log was replaced" in problem["detail"]
    assert server.client.get("/health/live").status_code == 200
    assert server.client.post("/predict", json={"queries": ["before"]}).status_code == 200
    wait_for(lambda: "keymatch_log_damaged 1.0" in server.client.get("/metrics").text)
    server.kill()
    last = start(wait=False)
    assert last.process.wait(60) != 0
    said = last.log.read_text()
    assert "but event 201 was written here: put the file that holds it back" in said
    assert "Traceback" not in said


def test_writes_are_refused_while_the_log_is_damaged(
    serve: Callable[..., LocalService], tmp_path: Path
) -> None:
    service, log = serve(log_check_minutes=EVERY_60_MS), Place(tmp_path / "state")
    for name in ("axe", "rope", "saw"):
        assert put(service, name).status_code == 200
    [(body,)] = log.tamper("SELECT body FROM events WHERE sequence = 2")

    log.tamper("UPDATE events SET body = '{}' WHERE sequence = 2")
    wait_for(lambda: service.get(READY).json()["writes"] == "failing")

    answer = put(service, "late")
    assert_problem(answer, 503)
    assert_no_internals(answer)
    assert "keymatch_log_damaged 1.0" in service.get("/metrics").text
    assert service.post("/predict", {"queries": ["a good rope"]}).json()["version"] == 3
    assert log.tamper("SELECT count(*) FROM events") == [(3,)]

    log.tamper("UPDATE events SET body = :body WHERE sequence = 2", body=body)
    wait_for(lambda: service.get(READY).json()["writes"] == "accepted")
    assert put(service, "late").json()["version"] == 4
    assert "keymatch_log_damaged 0.0" in service.get("/metrics").text
    assert log.ids() == ["axe", "rope", "saw", "late"]


@pytest.mark.slow  # two starts of a process
def test_no_write_is_acknowledged_on_a_disk_that_turned_readonly(
    failing_disk: FailingDisk, tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    state = failing_disk.folder / "state"
    acknowledged = []
    with server_process(tiny_bundle_folder, state, tmp_path / "stderr") as server:
        for number in range(40):
            if number == 20:
                failing_disk.trigger.write_text("1")
            if put(server, f"label-{number}").status_code == 200:
                acknowledged.append(f"label-{number}")

        assert acknowledged == [f"label-{number}" for number in range(20)]
        answer = put(server, "late")
        assert_problem(answer, 503)
        assert_no_internals(answer)
        assert server.client.get(READY).json()["writes"] == "failing"
        assert server.client.post("/predict", json={"queries": ["tent"]}).status_code == 200
        assert server.client.get("/labels/label-0").status_code == 200
        server.kill()
    failing_disk.unmount()
    failing_disk.mount()  # replays the file system's journal

    with server_process(tiny_bundle_folder, state, tmp_path / "stderr") as server:
        page = server.client.get("/labels", params={"limit": 100}).json()
        assert {label["id"] for label in page["labels"]} == set(acknowledged)
        assert put(server, "after").status_code == 200
        assert server.stop() == 0


def test_no_write_is_lost_or_repeated_when_the_clock_is_set_back(
    serve: Callable[..., LocalService], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, now = serve(), time.time
    before = put(service, "axe").json()
    monkeypatch.setattr(time, "time", lambda: now() - HOUR)
    assert put(service, "axe").json() == before
    assert put(service, "rope").json()["version"] == 2

    second = serve()  # started while the clock shows an earlier time
    assert put(second, "axe").json() == before
    assert put(second, "saw").json()["version"] == 3
    for name in ("axe", "rope", "saw"):
        assert second.get(f"/labels/{name}").status_code == 200
    with closing(open_log(tmp_path / "state", create=False)) as log:
        assert verify(log).events == 3
