"""The clock is set back by an hour between two writes: none is lost, and none is written twice."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from service.core.label_log import open_log
from service.core.label_log.maintenance.check import verify
from tests.support.serving import LocalService, local_service

HOUR = 3600.0


def put(service: LocalService, name: str) -> dict[str, object]:
    labels = {"labels": [{"id": name, "text": f"a good {name}"}]}
    answer = service.post("/labels", labels, headers={"idempotency-key": name})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_writes_go_on_when_the_clock_is_set_back(
    tiny_bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, now = tmp_path / "state", time.time
    with local_service(tiny_bundle_folder, state) as service:
        before = put(service, "axe")
        monkeypatch.setattr(time, "time", lambda: now() - HOUR)
        assert put(service, "axe") == before
        assert put(service, "rope")["version"] == 2

    with local_service(tiny_bundle_folder, state) as service:  # a restart by the earlier clock
        assert put(service, "axe") == before
        assert put(service, "saw")["version"] == 3
        for name in ("axe", "rope", "saw"):
            assert service.get(f"/labels/{name}").status_code == 200
    with closing(open_log(state, create=False)) as log:
        assert verify(log).events == 3
