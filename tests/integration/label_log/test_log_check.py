"""A log that is damaged under a running service: no write is acknowledged that a start refuses."""

from pathlib import Path

from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.label_logs import Place
from tests.support.serving import LocalService, local_service, wait_for

EVERY_60_MS = 0.001


def writes(service: LocalService) -> str:
    return service.get("/health/ready").json()["writes"]


def test_writes_are_refused_while_the_log_is_damaged(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with local_service(tiny_bundle_folder, state, log_check_minutes=EVERY_60_MS) as service:
        for name in ("axe", "rope", "saw"):
            labels = {"labels": [{"id": name, "text": f"a good {name}"}]}
            assert service.post("/labels", labels).status_code == 200
        [(body,)] = Place(state).tamper("SELECT body FROM events WHERE sequence = 2")

        Place(state).tamper("UPDATE events SET body = '{}' WHERE sequence = 2")
        wait_for(lambda: writes(service) == "failing")

        answer = service.post("/labels", {"labels": [{"id": "late", "text": "late"}]})
        assert_problem(answer, 503)
        assert_no_internals(answer)
        assert "keymatch_log_damaged 1.0" in service.get("/metrics").text
        assert service.post("/predict", {"queries": ["a good rope"]}).json()["version"] == 3
        assert Place(state).tamper("SELECT count(*) FROM events") == [(3,)]

        Place(state).tamper("UPDATE events SET body = :body WHERE sequence = 2", body=body)
        wait_for(lambda: writes(service) == "accepted")
        labels = {"labels": [{"id": "late", "text": "late"}]}
        assert service.post("/labels", labels).json()["version"] == 4
        assert "keymatch_log_damaged 0.0" in service.get("/metrics").text
    with local_service(tiny_bundle_folder, state) as service:
        assert service.get("/labels/late").status_code == 200
