"""A service does not start on a damaged log; after the log's recovery, it serves intact events."""

import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from service.core.label_log import open_log
from tests.support.commands import complaint, run
from tests.support.label_logs import Place
from tests.support.serving import ServerProcess, local_service, wait_for
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS

PAGE = 4096


@pytest.fixture(scope="module")
def tiny_bundle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with an item memory, which `start` serves."""
    return make_bundle(tmp_path_factory.mktemp("damaged") / "tiny", items=ITEMS)


@pytest.mark.slow  # two starts of a process
def test_a_damaged_log_is_recovered(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    state, new = tmp_path / "state", tmp_path / "new"
    with local_service(tiny_bundle_folder, state) as service:
        labels = [{"id": name, "text": f"a good {name}"} for name in ("axe", "rope", "saw")]
        assert service.post("/labels", {"labels": labels}).status_code == 200
        clicked = {"instances": [{"query": "grainger", "labels": ["rope"]}]}
        assert service.post("/instances", clicked).status_code == 200
        assert service.request("DELETE", "/labels/rope").status_code == 200
        items = [{"id": name, "text": f"for the {name}"} for name in ("web", "shop")]
        assert service.post("/items", {"items": items}).status_code == 200
        assert service.request("DELETE", "/items/feet").status_code == 200
    for damaged in (2, 6):  # the events of rope and web
        Place(state).tamper("UPDATE events SET body = '{}' WHERE sequence = :it", it=damaged)

    said = complaint(
        run("service", "serve", "--bundle", tiny_bundle_folder, "--state", state, "--port", 0)
    )
    assert "whole are the events 1, 3-5, 7-8; lost are 2, 6" in said
    assert "keymatch log --recover NEW" in said

    ended = run("service", "log", "--state", state, "--recover", new)
    assert ended.returncode == 1
    assert "whole are the events 1, 3-5, 7-8; lost are 2, 6" in ended.stdout
    with local_service(tiny_bundle_folder, new) as recovered:
        page = recovered.get("/labels").json()
        assert {label["id"] for label in page["labels"]} == {"axe", "saw"}
        assert recovered.get("/info").json()["version"] == 6
        items = recovered.get("/items").json()["items"]
        assert [item["id"] for item in items] == ["camp", "light", "shop", "water"]
        assert recovered.get("/labels/rope").status_code == 404


def put(server: ServerProcess, *names: str) -> int:
    labels = [{"id": name, "text": f"a good {name}"} for name in names]
    return server.client.post("/labels", json={"labels": labels}).status_code


def damage(file: Path, *, holding: bytes) -> None:
    """Overwrite the page that holds these bytes, in a separate process."""
    seek = f"seek={file.read_bytes().index(holding) // PAGE}"
    command = ["dd", f"of={file}", seek, f"bs={PAGE}", "conv=notrunc", "status=none"]
    subprocess.run(command, input=b"\xff" * PAGE, check=True)


def lost_of(said: str) -> set[int]:
    """Read the numbers in "... lost are 18, 20-22"."""
    listed = said.partition("lost are ")[2].partition(".")[0].split(", ")
    runs = [tuple(map(int, run.split("-"))) for run in listed]
    return {number for run in runs for number in range(run[0], run[-1] + 1)}


@pytest.mark.slow  # three starts of a process
def test_what_is_written_after_a_page_was_damaged_is_recovered(
    start: Callable[..., ServerProcess], tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    server, state, new = start(), tmp_path / "state", tmp_path / "new"
    names = [f"label-{number}" for number in range(200)]
    assert put(server, *names) == 200
    assert server.stop() == 0  # moves all events into the main file
    server = start()

    damage(state / "labels.sqlite", holding=b"a good label-100")
    acknowledged = [*names, *(name for name in ("late", "later") if put(server, name) == 200)]
    wait_for(lambda: server.client.get("/health/ready").json().get("writes") == "failing")
    assert put(server, "too late") == 503
    assert server.client.get("/labels/label-100").status_code == 200
    server.kill()

    said = complaint(
        run("service", "serve", "--bundle", tiny_bundle_folder, "--state", state, "--port", 0)
    )
    assert "keymatch log --recover NEW" in said
    ended = run("service", "log", "--state", state, "--recover", new)
    assert ended.returncode == 1, ended.stderr
    lost = lost_of(ended.stdout.splitlines()[0])
    assert 101 in lost and len(lost) < 50
    with closing(open_log(new, create=False)) as log:
        saved = [event.body["id"] for event in log.read()]
    assert saved == [name for number, name in enumerate(acknowledged, 1) if number not in lost]
