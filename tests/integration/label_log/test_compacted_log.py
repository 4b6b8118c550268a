"""A log is compacted under a running service; a restart needs the snapshot with the old events."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from service.__main__ import app
from service.core.errors import LogCut
from service.core.label_log import open_log
from tests.support.commands import Refused, run, status_of
from tests.support.http.every_kind import assert_every_kind, shown_of, write_every_kind
from tests.support.label_logs import Place, append
from tests.support.serving import LocalService, local_service, wait_for


@pytest.fixture
def shelf(tiny_bundle_folder: Path, tmp_path: Path) -> Path:
    """A folder for bundles that holds one bundle."""
    shutil.copytree(tiny_bundle_folder, tmp_path / "shelf" / "tiny")
    return tmp_path / "shelf"


def put(service: LocalService, name: str) -> int:
    answer = service.post("/labels", {"labels": [{"id": name, "text": f"a good {name}"}]})
    assert answer.status_code == 200, answer.text
    return answer.json()["version"]


def ids(service: LocalService) -> set[str]:
    return {label["id"] for label in service.get("/labels").json()["labels"]}


def test_a_log_is_cut_while_its_service_writes(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    with local_service(shelf / "tiny", state) as service:
        put(service, "axe")
        put(service, "rope")
        assert service.post("/admin/snapshot", {"bundle": "held"}).json()["version"] == 2
        put(service, "late")
        assert service.post("/admin/reload", {"bundle": "held"}).status_code == 200

        ended = run("service", "log", "--state", state, "--compact", shelf / "held")
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == f"{state}/labels.sqlite: 2 events were cut, 2 are kept\n"

        assert put(service, "saw") == 5
        assert ids(service) == {"late", "saw"}
        for name in ("axe", "rope", "late", "saw"):
            assert service.get(f"/labels/{name}").status_code == 200
    assert status_of(app, "log", "--state", state, "--check") == 0
    assert "intact, 3 events, 3 to 5," in capsys.readouterr().out

    with local_service(shelf / "tiny", state) as service:  # the log switches to the reloaded bundle
        assert service.get("/info").json()["bundle"]["name"] == "held"
        for name in ("axe", "rope", "late", "saw"):
            assert service.get(f"/labels/{name}").status_code == 200

    shutil.rmtree(shelf / "held")
    with local_service(shelf / "tiny", state, wait=False) as service:
        wait_for(lambda: service.engine.failure)
        assert isinstance(service.engine.failure, LogCut)
        assert "serve a snapshot of version 2 or later" in str(service.engine.failure)


def test_only_a_snapshot_of_this_log_cuts_it(shelf: Path, tmp_path: Path, refused: Refused) -> None:
    state, nowhere = tmp_path / "state", tmp_path / "nowhere"
    with closing(open_log(state)) as opened:
        append(opened, "axe")
    for folder, bundle, said in (
        (state, shelf / "tiny", "tiny is no snapshot of"),
        (nowhere, shelf / "tiny", "holds no label log"),
        (state, shelf, "is not a bundle"),
    ):
        assert said in refused(app, "log", "--state", folder, "--compact", bundle)
    assert Place(state).tamper("SELECT count(*) FROM events") == [(1,)]
    assert not nowhere.exists()


def test_a_cut_keeps_the_last_reload_and_a_snapshot_serves_no_log_of_another_history(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other log is an older copy that went on by itself."""
    state, older = tmp_path / "state", tmp_path / "older"
    with local_service(shelf / "tiny", state) as service:
        put(service, "axe")
        assert service.post("/admin/reload", {"bundle": "tiny"}).status_code == 200
    shutil.copytree(state, older)
    with local_service(shelf / "tiny", state) as service:
        put(service, "rope")
        put(service, "saw")
        assert service.post("/admin/snapshot", {"bundle": "held"}).json()["version"] == 4
    with local_service(shelf / "tiny", older) as service:
        put(service, "lamp oil")
        put(service, "saw")
    with local_service(shelf / "held", older, wait=False) as service:
        failure = wait_for(lambda: service.engine.failure)
    assert "has another event 4 than the bundle held holds" in str(failure)

    assert status_of(app, "log", "--state", state, "--compact", shelf / "held") == 0
    said = capsys.readouterr().out
    assert "1 events were cut, 3 are kept\nevents 2 to 4 are in " in said
    assert "they can be cut once the snapshot has been reloaded" in said


@pytest.mark.parametrize("log", ["SQLite", "PostgreSQL"])
def test_writes_of_every_kind_are_kept_by_replicas_recoveries_and_cuts(
    shelf: Path, tmp_path: Path, request: pytest.FixtureRequest, log: str
) -> None:
    state: Path | str = tmp_path / "state"
    if log == "PostgreSQL":
        state = request.getfixturevalue("postgres_url")
    with (
        local_service(shelf / "tiny", state) as service,
        local_service(shelf / "tiny", state) as replica,
    ):
        version = write_every_kind(service)
        shown = shown_of(service)
        assert_every_kind(shown)
        assert shown_of(replica, min_version=version) == shown
        assert service.post("/admin/snapshot", {"bundle": "held"}).json()["version"] == version

    assert status_of(app, "log", "--state", state, "--recover", tmp_path / "recovered") == 0
    with local_service(shelf / "tiny", tmp_path / "recovered") as service:
        assert shown_of(service) == shown

    assert status_of(app, "log", "--state", state, "--compact", shelf / "held") == 0
    with local_service(shelf / "held", state) as service:
        assert_every_kind(shown_of(service))
        assert service.get("/info").json()["version"] == version
        assert service.post("/labels", {"labels": [{"text": "later"}]}).status_code == 200
