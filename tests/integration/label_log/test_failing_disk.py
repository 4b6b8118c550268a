"""The disk of the label log turns read-only under a running service."""

from pathlib import Path

import pytest

from tests.support.disks import FailingDisk
from tests.support.disks import failing_disk as failing_disk
from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.serving import ServerProcess, server_process


def put(server: ServerProcess, name: str) -> int:
    labels = {"labels": [{"id": name, "text": f"a good {name}"}]}
    return server.client.post("/labels", json=labels).status_code


@pytest.mark.slow  # two starts of a process
def test_no_write_is_acknowledged_on_a_disk_that_turned_readonly(
    failing_disk: FailingDisk, tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    state = failing_disk.folder / "state"
    acknowledged = []
    with server_process(tiny_bundle_folder, state, tmp_path / "stderr") as server:
        for number in range(40):
            if number == 20:
                failing_disk.fail()
            if put(server, f"label-{number}") == 200:
                acknowledged.append(f"label-{number}")

        assert acknowledged == [f"label-{number}" for number in range(20)]
        answer = server.client.post("/labels", json={"labels": [{"text": "late"}]})
        assert_problem(answer, 503)
        assert_no_internals(answer)
        assert server.client.get("/health/ready").json()["writes"] == "failing"
        assert server.client.post("/predict", json={"queries": ["tent"]}).status_code == 200
        assert server.client.get("/labels/label-0").status_code == 200
        server.kill()
    failing_disk.unmount()
    failing_disk.mount()  # which replays its journal

    with server_process(tiny_bundle_folder, state, tmp_path / "stderr") as server:
        page = server.client.get("/labels", params={"limit": 100}).json()
        assert {label["id"] for label in page["labels"]} == set(acknowledged)
        assert put(server, "after") == 200
        assert server.stop() == 0
