"""Items posted to one process are used by all others, from the version of the post on."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.http.problems import assert_problem
from tests.support.serving import ServerProcess, server_process, wait_for
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS

FRESH = {"connection": "close"}  # one connection always reaches the same worker
SLEEP = {"id": "sleep", "text": "somewhere to sleep"}
TRIES = 12  # enough that both workers answer some


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("items") / "with-items", items=ITEMS)


def put(server: ServerProcess, *items: dict[str, str]) -> int:
    answer = server.client.post("/items", json={"items": list(items)}, headers=FRESH)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def delete(server: ServerProcess, item_id: str) -> int:
    return int(server.client.delete(f"/items/{item_id}", headers=FRESH).json()["version"])


def predict(server: ServerProcess, version: int, items: list[str] | None) -> Any:
    asked = {"queries": ["somewhere to sleep"], "min_version": version, "items": items}
    return server.client.post("/predict", json={**asked, "deadline_ms": 60_000}, headers=FRESH)


def memory(server: ServerProcess, version: int) -> Any:
    """Wait until the server has reached a version; return the memory in its `/info`."""

    def reached() -> Any:
        info = server.client.get("/info", headers=FRESH).json()
        return info["memory"] if info["version"] == version else None

    return wait_for(reached)


def test_every_worker_attends_to_what_another_has_taken(bundle: Path, tmp_path: Path) -> None:
    places = (bundle, tmp_path / "state", tmp_path / "stderr")
    with server_process(*places, "--workers", "2") as server:
        wait_for(lambda: len(server.workers) >= 2)
        version = put(server, SLEEP)
        answers = [predict(server, version, items) for items in (["sleep"], None) * TRIES]
        assert {answer.status_code for answer in answers} == {200}
        keywords = {str(answer.json()["results"][0]["keywords"]) for answer in answers}
        assert len(keywords) == 2  # one with the given item, one with the predicted ones
        assert {memory(server, version)["items"] for _ in range(TRIES)} == {5}

        version = delete(server, "sleep")
        for _ in range(TRIES):
            assert_problem(predict(server, version, ["sleep"]), 422, field="items.0")
        assert {memory(server, version)["items"] for _ in range(TRIES)} == {4}


def test_replicas_attend_to_the_same_items(bundle: Path, postgres_url: str, tmp_path: Path) -> None:
    """The replicas are two processes that share only a log in PostgreSQL."""
    with (
        server_process(bundle, postgres_url, tmp_path / "stderr-one") as one,
        server_process(bundle, postgres_url, tmp_path / "stderr-other") as other,
    ):
        put(one, SLEEP, {"id": "camp", "text": "camping at night"})
        delete(other, "feet")
        version = put(other, {"id": "rain", "text": "dry in the rain"})
        clicked = {"instances": [{"query": "nap", "labels": ["tent"]}]}
        version = int(one.client.post("/instances", json=clicked).json()["version"])
        for items in (None, [], ["sleep"], ["rain", "camp"]):
            answers = [predict(server, version, items).json() for server in (one, other)]
            assert answers[0]["results"] == answers[1]["results"]
        assert memory(one, version) == memory(other, version)
        pages = [server.client.get("/items").json() for server in (one, other)]
        assert pages[0] == pages[1]
        ids = [item["id"] for item in pages[0]["items"]]
        assert ids == ["camp", "light", "rain", "sleep", "water"]
