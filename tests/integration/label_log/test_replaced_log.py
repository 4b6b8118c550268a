"""The files of the label log are removed or replaced under a running service."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.serving import ServerProcess, wait_for

READY = "/health/ready"


def put(server: ServerProcess, text: str) -> object:
    return server.client.post("/labels", json={"labels": [{"id": text, "text": text}]})


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
def test_no_write_is_acknowledged_that_a_restart_would_not_find(
    start: Callable[..., ServerProcess], tmp_path: Path, attack: Callable[[Path], None]
) -> None:
    server = start()
    assert put(server, "before").status_code == 200
    assert server.client.get(READY).status_code == 200

    attack(tmp_path / "state")

    answer = put(server, "after")
    assert_problem(answer, 503)
    assert_no_internals(answer)
    problem = assert_problem(server.client.get(READY), 503)
    assert "the label log was replaced" in problem["detail"]
    assert server.client.get("/health/live").status_code == 200  # a restart would lose what is here
    assert server.client.post("/predict", json={"queries": ["before"]}).status_code == 200
    assert server.client.get("/labels/before").status_code == 200
    assert server.client.get("/labels/after").status_code == 404


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
    second = start()
    assert second.client.get("/labels/before").status_code == 200
    assert second.client.get("/labels/after").status_code == 200
    assert second.client.get("/labels/meanwhile").status_code == 404


def test_a_restart_with_an_older_copy_is_refused(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server, state = start(), tmp_path / "state"
    assert put(server, "before").status_code == 200
    assert server.stop() == 0
    shutil.copy(state / "labels.sqlite", tmp_path / "older")
    second = start()
    assert put(second, "after").status_code == 200
    second.kill()
    for path in state.glob("labels.sqlite*"):
        path.unlink()
    (tmp_path / "older").replace(state / "labels.sqlite")

    third = start(wait=False)
    assert third.process.wait(60) != 0
    said = third._log.read_text()
    assert "but event 2 was written here: put the file that holds it back" in said
    assert "Traceback" not in said


@pytest.mark.slow  # four starts of a process
def test_no_write_is_acknowledged_after_an_older_copy_was_written_over_the_log(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    """As by `cp`, which keeps the inode; a stopped service has all events in the main file."""
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
    assert "but event 201 was written here" in last._log.read_text()
