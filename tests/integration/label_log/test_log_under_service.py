"""The log's files, pages, disk and clock change or fail while the service runs.

The service acknowledges no write that a restart would not find or would refuse. It does not start
on a damaged log; after the log's recovery, it serves the intact events.
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
from service.core.label_log.maintenance import verify
from tests.support.commands import complaint, run
from tests.support.disks import FailingDisk
from tests.support.disks import failing_disk as failing_disk
from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.label_logs import Place, damage_page, ids
from tests.support.serving import (
    LocalService,
    ServerProcess,
    local_service,
    server_process,
    wait_for,
)
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS

READY = "/health/ready"
EVERY_60_MS = 0.001
HOUR = 3600.0


@pytest.fixture(scope="module")
def tiny_bundle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with an item memory, which all services of this file serve."""
    return make_bundle(tmp_path_factory.mktemp("under") / "tiny", items=ITEMS)


def client_of(service: LocalService | ServerProcess) -> LocalService | httpx.Client:
    return service if isinstance(service, LocalService) else service.client


def put(service: LocalService | ServerProcess, name: str) -> httpx.Response:
    """Put a label with an idempotency key."""
    labels = {"labels": [{"id": name, "text": f"a good {name}"}]}
    return client_of(service).post("/labels", json=labels, headers={"idempotency-key": name})


def put_many(server: ServerProcess, names: list[str]) -> None:
    labels = {"labels": [{"id": name, "text": f"a good {name}"} for name in names]}
    assert server.client.post("/labels", json=labels).status_code == 200


def refuse_to_start(bundle: Path, state: Path) -> str:
    """Return what the service says that does not start on this log."""
    places = ("--bundle", bundle, "--state", state, "--port", "0")
    return complaint(run("service", "serve", *places, "--workers", "1"))


def assert_a_write_fails(service: LocalService | ServerProcess, *, known: str) -> None:
    """A write is refused without details, and queries are answered."""
    client = client_of(service)
    answer = put(service, "refused")
    assert_problem(answer, 503)
    assert_no_internals(answer)
    assert client.post("/predict", json={"queries": [known]}).status_code == 200
    assert client.get(f"/labels/{known}").status_code == 200
    assert client.get("/labels/refused").status_code == 404


def assert_replaced(service: LocalService | ServerProcess) -> None:
    assert_a_write_fails(service, known="before")
    problem = assert_problem(client_of(service).get(READY), 503)
    assert "the label log was replaced" in problem["detail"]
    live = client_of(service).get("/health/live")
    assert live.status_code == 200  # a restart would lose events


def moved_aside(state: Path) -> None:
    files = [*state.glob("labels.sqlite*")]
    (state / "aside").mkdir()
    for path in files:
        path.rename(state / "aside" / path.name)


def replaced_by_a_copy(state: Path) -> None:
    """Copy in another process: if this one opened and closed the files, it would lose its locks."""
    moved_aside(state)
    subprocess.run(["cp", "-r", f"{state}/aside/.", state], check=True)


@pytest.mark.parametrize("attack", [moved_aside, replaced_by_a_copy])
def test_no_write_is_acknowledged_until_the_files_that_were_opened_are_put_back(
    service: LocalService, tmp_path: Path, attack: Callable[[Path], None]
) -> None:
    state = tmp_path / "state"
    assert put(service, "before").status_code == 200
    assert service.get(READY).status_code == 200
    attack(state)
    assert_replaced(service)

    for path in (state / "aside").iterdir():
        path.replace(state / path.name)
    assert put(service, "after").status_code == 200
    assert service.get(READY).json()["writes"] == "accepted"
    assert Place(state).ids() == ["before", "after"]


@pytest.mark.slow  # four starts of a process
def test_no_write_is_acknowledged_after_an_older_copy_was_written_over_the_log(
    start: Callable[..., ServerProcess], tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    """`cp` overwrites a file and keeps its inode. A stopped service leaves only the main file."""
    older, log = tmp_path / "older", tmp_path / "state" / "labels.sqlite"
    for count in (100, 200):
        server = start()
        put_many(server, [f"{count}-{number}" for number in range(100)])
        assert server.stop() == 0
        if count == 100:
            shutil.copy(log, older)
    server = start()
    assert put(server, "before").status_code == 200

    subprocess.run(["cp", older, log], check=True)

    assert_replaced(server)
    wait_for(lambda: "keymatch_log_damaged 1.0" in server.client.get("/metrics").text)
    server.kill()
    said = refuse_to_start(tiny_bundle_folder, tmp_path / "state")
    assert "but event 201 was written here: put the file that holds it back" in said


def lost_of(said: str) -> set[int]:
    """Read the numbers in "... lost are 18, 20-22"."""
    listed = said.partition("lost are ")[2].partition(".")[0].split(", ")
    runs = [tuple(map(int, run.split("-"))) for run in listed]
    return {number for run in runs for number in range(run[0], run[-1] + 1)}


@pytest.mark.slow  # four starts of a process
def test_what_is_written_before_and_after_a_page_was_damaged_is_recovered(
    start: Callable[..., ServerProcess], tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    server, state, new = start(), tmp_path / "state", tmp_path / "new"
    items = {"items": [{"id": name, "text": f"for the {name}"} for name in ("web", "shop")]}
    assert server.client.post("/items", json=items).status_code == 200
    assert server.client.delete("/items/feet").status_code == 200
    names = [f"label-{number}" for number in range(200)]
    put_many(server, names)
    assert server.stop() == 0  # moves all events into the main file
    server = start()

    damage_page(state / "labels.sqlite", holding=b"a good label-100")
    names += [name for name in ("late", "later") if put(server, name).status_code == 200]
    wait_for(lambda: server.client.get(READY).json().get("writes") == "failing")
    assert_a_write_fails(server, known="label-100")
    server.kill()

    said = refuse_to_start(tiny_bundle_folder, state)
    assert "keymatch log --recover NEW" in said
    ended = run("service", "log", "--state", state, "--recover", new)
    assert ended.returncode == 1, ended.stderr
    lost = lost_of(ended.stdout.splitlines()[0])
    assert lost == lost_of(said)
    assert 104 in lost and len(lost) < 50
    saved = [name for number, name in enumerate(names, 4) if number not in lost]
    with local_service(tiny_bundle_folder, new) as recovered:
        labels = recovered.get("/labels?limit=1000").json()["labels"]
        assert {label["id"] for label in labels} == set(saved)
        assert recovered.get("/info").json()["version"] == 3 + len(saved)
        items = recovered.get("/items").json()["items"]
        assert [item["id"] for item in items] == ["camp", "light", "shop", "water", "web"]
    with closing(open_log(new, create=False)) as log:
        assert ids(log) == ["web", "shop", "feet", *saved]


def test_writes_are_refused_while_the_log_is_damaged(
    serve: Callable[..., LocalService], tmp_path: Path
) -> None:
    service, log = serve(log_check_minutes=EVERY_60_MS), Place(tmp_path / "state")
    for name in ("axe", "rope", "saw"):
        assert put(service, name).status_code == 200
    [(body,)] = log.tamper("SELECT body FROM events WHERE sequence = 2")

    log.tamper("UPDATE events SET body = '{}' WHERE sequence = 2")
    wait_for(lambda: service.get(READY).json()["writes"] == "failing")

    assert_a_write_fails(service, known="rope")
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
        assert_a_write_fails(server, known="label-0")
        assert server.client.get(READY).json()["writes"] == "failing"
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
