"""If the disk or the log fails, the error names it, reads go on, and nothing is lost."""

import logging
import os
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.core.errors import LogError
from service.core.label_log import open_log, sqlite
from service.core.label_log.maintenance import verify
from service.engine.engine import Engine
from service.settings import EngineSettings
from service.telemetry import Telemetry
from tests.support.commands import complaint, run
from tests.support.disks import SmallDisk
from tests.support.disks import small_disk as small_disk
from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.no_children import no_children
from tests.support.serving import LocalService, ServerProcess, local_service, wait_for

FILE = "labels.sqlite"


def label(number: int) -> dict[str, Any]:
    return {"labels": [{"id": f"n{number}", "text": f"label {number}", "queries": ["a", "b"]}]}


Served = LocalService | httpx.Client  # a service, or a client of a server process


def post(service: Served, number: int) -> httpx.Response:
    return service.request("POST", "/labels", json=label(number))


def assert_writes_fail(client: Served, number: int, version: int) -> None:
    """A write gets a 503 that names the label log, reads go on, and the readiness probe fails."""
    answer = post(client, number)
    problem = assert_problem(answer, 503)
    assert problem["title"] == "The label log cannot be written"
    assert_no_internals(answer)
    predicted = client.request("POST", "/predict", json={"queries": ["tent"]})
    assert predicted.json()["version"] == version
    assert_problem(client.get(f"/labels/n{number}"), 404)
    ready = client.get("/health/ready")
    assert (ready.status_code, ready.json()["writes"]) == (200, "failing")
    assert client.get("/health/live").status_code == 200


def assert_writes_succeed(client: Served, number: int, version: int) -> None:
    assert post(client, number).json()["version"] == version
    assert client.get("/health/ready").json()["writes"] == "accepted"


def assert_log_holds(state: Path, *numbers: int) -> None:
    """The log holds each of these labels once, in this order, and nothing else."""
    with closing(open_log(state, create=False)) as log:
        assert verify(log).events == len(numbers)
        assert [event.body["id"] for event in log.read()] == [f"n{number}" for number in numbers]


def causes(caplog: pytest.LogCaptureFixture, message: str) -> list[str]:
    return [record.__dict__["cause"] for record in caplog.records if record.message == message]


# The disk --------------------------------------------------------------------------------


def test_a_full_disk(
    tiny_bundle_folder: Path, small_disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "keymatch")
    state = small_disk.folder / "state"
    with local_service(tiny_bundle_folder, state) as service:
        assert_writes_succeed(service, 0, 1)
        with small_disk.full():
            for _ in range(2):
                assert_writes_fail(service, 1, 1)
        assert_writes_succeed(service, 1, 2)
    [cause] = causes(caplog, "the label log cannot be used")
    assert str(state / FILE) in cause and "full" in cause
    assert [r for r in caplog.records if r.message == "the label log can be used again"]
    with local_service(tiny_bundle_folder, state) as restarted:
        assert restarted.get("/info").json()["version"] == 2
    assert_log_holds(state, 0, 1)


def test_a_disk_too_full_for_segments(
    tiny_bundle_folder: Path,
    tmp_path: Path,
    small_disk: SmallDisk,
    caplog: pytest.LogCaptureFixture,
) -> None:
    how = {"seal_rows": 4, "segments": small_disk.folder / "segments"}
    with local_service(tiny_bundle_folder, tmp_path / "state", **how) as service:
        with small_disk.full():
            for number in range(2):
                assert_writes_succeed(service, number, number + 1)
            [cause] = wait_for(lambda: causes(caplog, "live rows or posted items cannot be sealed"))
            assert str(small_disk.folder) in cause and "No space left" in cause
            assert service.get("/info").json()["memory"]["unsealed_segments"] == 1
        wait_for(lambda: service.get("/info").json()["memory"]["unsealed_segments"] == 0)
        assert not list((small_disk.folder / "segments").glob(".*"))


def test_a_disk_that_fails_for_a_while(start: Callable[..., ServerProcess], tmp_path: Path) -> None:
    """Every write to a file fails with SQLite's "disk I/O error", as if the device were gone."""
    server = start()
    assert_writes_succeed(server.client, 0, 1)
    unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
    assert_writes_fail(server.client, 1, 1)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
    assert_writes_succeed(server.client, 1, 2)
    server.kill()
    assert_log_holds(tmp_path / "state", 0, 1)


def test_a_readonly_disk_at_the_start(tiny_bundle_folder: Path, small_disk: SmallDisk) -> None:
    state = small_disk.folder / "state"
    open_log(state).close()
    with small_disk.readonly():
        for place in (state, small_disk.folder / "new"):
            said = refused_open(tiny_bundle_folder, place)
            assert str(place) in said
            assert "cannot be" in said


# The lock --------------------------------------------------------------------------------


@contextmanager
def locked(state: Path) -> Iterator[sqlite3.Connection]:
    """Another connection holds the file's write lock until it rolls back or the block ends."""
    with closing(sqlite3.connect(state / FILE, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield other


def test_a_log_that_another_process_locks(
    serve: Callable[..., LocalService],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_SECONDS", 0.5)  # instead of 5
    service = serve()
    with locked(tmp_path / "state"):
        assert_writes_fail(service, 0, 0)
        [cause] = causes(caplog, "the label log cannot be used")
        assert cause.startswith(f"{tmp_path / 'state' / FILE} cannot be ")
        assert "another process held its lock for too long" in cause
    assert_writes_succeed(service, 0, 1)
    assert_log_holds(tmp_path / "state", 0)


def test_a_write_waits_for_a_lock_that_is_let_go(
    service: LocalService, tmp_path: Path, aside: Callable[..., Future[httpx.Response]]
) -> None:
    with locked(tmp_path / "state") as other:
        waiting = aside(post, service, 0)
        # The writer has taken the job from its queue and tries to begin the transaction.
        wait_for(lambda: service.engine._writer._queue._waiting == 1)
        assert service.post("/predict", {"queries": ["tent"]}).json()["version"] == 0
        assert not waiting.done()
        other.rollback()
        assert waiting.result(60).json()["version"] == 1


# The file --------------------------------------------------------------------------------


def refused_open(bundle: Path, state: Path) -> str:
    """Return the error of an engine that cannot open this state, which ends the service."""
    engine = Engine(bundle, state, settings=EngineSettings(threads=1), telemetry=Telemetry())
    with no_children(), pytest.raises(LogError) as refused:
        engine.open()
    engine.kill_children()
    return str(refused.value)


def overwrite(file: Path, at: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(content)


def not_a_database(file: Path) -> None:
    file.write_text("these are no labels\n" * 500)


def flipped(file: Path) -> None:
    at = file.read_bytes().index(b'"text":"label 7"')
    overwrite(file, at + 8, b"L")


def torn(file: Path) -> None:
    size = file.stat().st_size
    overwrite(file, size // 2 // 4096 * 4096, os.urandom(8192))


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.fixture(scope="module")
def hundred_labels(tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A label log with a hundred labels."""
    state = tmp_path_factory.mktemp("hundred") / "state"
    with local_service(tiny_bundle_folder, state) as service:
        for number in range(100):
            assert_writes_succeed(service, number, number + 1)
    with closing(sqlite3.connect(state / FILE)) as log:  # the main file shall hold all events
        log.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return state


@pytest.mark.parametrize("damage", [not_a_database, flipped, torn, cut])
def test_a_damaged_log_is_named_at_the_start(
    tiny_bundle_folder: Path, hundred_labels: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    state = Path(shutil.copytree(hundred_labels, tmp_path / "state"))
    damage(state / FILE)
    said = refused_open(tiny_bundle_folder, state)
    assert str(state / FILE) in said
    if damage is flipped:
        assert "event 8 was altered: its checksum is wrong" in said
        places = ("--bundle", tiny_bundle_folder, "--state", state, "--port", "0")
        assert complaint(run("service", "serve", *places, "--workers", "1")) == said


def test_a_log_that_is_damaged_under_the_service(
    tiny_bundle_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged event from another process stops the writer, and the probes fail."""
    state = tmp_path / "state"
    with local_service(tiny_bundle_folder, state) as service:
        assert_writes_succeed(service, 0, 1)
        with closing(sqlite3.connect(state / FILE)) as other:
            other.execute("INSERT INTO events SELECT 2, kind, body, vectors, encoder, checksum,"
                          " written, chain FROM events")  # fmt: skip
            other.commit()
        wait_for(lambda: not service.engine.ready())
        [cause] = causes(caplog, "the label log is damaged")
        assert cause == f"{state / FILE}: event 2 was altered: its checksum is wrong"
        assert_problem(service.get("/health/live"), 503)
        assert_problem(post(service, 1), 503)
        predicted = service.post("/predict", {"queries": ["tent"]})
        assert predicted.json()["version"] == 1
