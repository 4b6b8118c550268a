"""A start on a damaged log is refused, and what is whole of it is served after its recovery."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import complaint, run
from tests.support.label_logs import Place
from tests.support.serving import ServerProcess, server_process


@pytest.mark.slow  # four starts of a process
def test_a_damaged_log_is_recovered(
    start: Callable[..., ServerProcess], tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    server, state, new = start(), tmp_path / "state", tmp_path / "new"
    for name in ("axe", "rope", "saw"):
        labels = {"labels": [{"id": name, "text": f"a good {name}"}]}
        assert server.client.post("/labels", json=labels).status_code == 200
    clicked = {"instances": [{"query": "grainger", "labels": ["rope"]}]}
    assert server.client.post("/instances", json=clicked).status_code == 200
    assert server.client.request("DELETE", "/labels/rope").status_code == 200
    server.stop()
    Place(state).tamper("UPDATE events SET body = '{}' WHERE sequence = 2")  # rope

    said = complaint(
        run("service", "serve", "--bundle", tiny_bundle_folder, "--state", state, "--port", 0)
    )
    assert "whole are the events 1, 3-5; lost are 2" in said
    assert "python -m service log --recover NEW" in said

    ended = run("service", "log", "--state", state, "--recover", new)
    assert ended.returncode == 1
    assert "whole are the events 1, 3-5; lost are 2" in ended.stdout
    with server_process(tiny_bundle_folder, new, tmp_path / "stderr-new") as recovered:
        page = recovered.client.get("/labels").json()
        assert {label["id"] for label in page["labels"]} == {"axe", "saw"}
        assert recovered.client.get("/info").json()["version"] == 4
        assert recovered.client.get("/labels/rope").status_code == 404
