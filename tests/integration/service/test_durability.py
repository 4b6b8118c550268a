"""Restarts keep writes answered with 200, even after kill -9, and a rebuilt graph of the bundle."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, ServerProcess, local_service, wait_for
from tests.support.tiny.bundles import LABELS as BUNDLED
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS

ITEM_WRITES = [
    {"id": "ice", "text": "ice and snow"},
    {"id": "camp", "text": "camping in winter"},
    {"id": "ice", "text": "glacier"},
]
QUERIES = ["ice axe", "glacier tool", "camping tent", "tarp", "warm boots", "label 17"]
LABELS = [
    {"id": "axe", "text": "ice axe", "queries": ["glacier tool"], "metadata": {"shop": "acme"}},
    {"id": "tent", "text": "tarp"},
    {"id": "axe", "text": "ice tool", "queries": ["glacier tool", "pick"]},
    *({"text": f"label {number}"} for number in range(20)),
]

WRITES = len(ITEM_WRITES) + len(LABELS) + 2


@pytest.fixture(scope="module")
def tiny_bundle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with an item memory, which `start` serves."""
    return make_bundle(tmp_path_factory.mktemp("durable") / "tiny", items=ITEMS)


def answers(server: ServerProcess) -> Any:
    """Return everything that a client can see of the memory, with exact scores."""
    body = {"queries": QUERIES, "explain": True, "depth": 100, "top_k": 100}
    results = []
    for items in (None, ["ice", "camp"], []):
        answer = server.client.post("/predict", json={**body, "items": items}).json()
        results.append(answer["results"])
    pages = [server.client.get(path).json() for path in ("/labels", "/items")]
    return answer["version"], results, pages


def write(server: ServerProcess) -> int:
    """Put items and labels, and delete one item; returns the version."""
    for item in ITEM_WRITES:
        answer = server.client.post("/items", json={"items": [item]})
        assert answer.status_code == 200, answer.text
    for label in LABELS:
        answer = server.client.post("/labels", json={"labels": [label]})
        assert answer.status_code == 200, answer.text
    server.client.post("/items", json={"items": [{"id": "gone", "text": "gone soon"}]})
    answer = server.client.delete("/items/gone")
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def test_restarts_and_kill_9_lose_nothing_that_was_answered(
    start: Callable[..., ServerProcess],
) -> None:
    first = start()
    assert write(first) == WRITES
    before = answers(first)
    assert first.stop() == 0
    second = start()
    assert answers(second) == before
    # New events: two forms each of "axe" and "ice", and "gone" is put and deleted.
    assert write(second) == WRITES + 6
    assert_problem(second.client.delete("/items/gone"), 404)
    refused = {"items": [{"id": "half", "text": "half"}, {"id": "other", "text": ""}]}
    assert_problem(second.client.post("/items", json=refused), 422)
    before = answers(second)
    second.kill()
    assert second.process.returncode == -signal.SIGKILL
    third = start()
    assert answers(third) == before
    version, _, (page, items) = before
    assert version == WRITES + 6
    assert {item["id"]: item["text"] for item in items["items"]} == {
        **ITEMS, "camp": "camping in winter", "ice": "glacier"
    }  # fmt: skip
    assert {label["id"] for label in page["labels"]} == {
        "axe", "tent", *(f"label {number}" for number in range(20))
    }  # fmt: skip
    assert third.client.get("/labels/axe").json()["text"] == "ice tool"


# The bundle's graph -----------------------------------------------------------------------


DELETED = ("shoes", "boots", "tent", "lamp")  # 9 of 14 rows


def ranked(service: LocalService) -> list[Any]:
    asked = {"queries": [*BUNDLED.values()], "top_k": 50}
    return [
        service.request("POST", "/predict", json={**asked, "memorization": share}).json()["results"]
        for share in (0.0, 0.4, 1.0)
    ]


def wait_until_built(service: LocalService) -> None:
    wait_for(lambda: service.get("/info").json()["memory"]["unsealed_segments"] == 0)


def test_a_graph_without_the_dead_rows_is_built_once_by_a_child(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with local_service(tiny_bundle_folder, state, seal_rows=4) as service:
        for label in DELETED:
            service.request("DELETE", f"/labels/{label}").raise_for_status()
        wait_until_built(service)
        before = ranked(service)
    [built] = (state / "segments" / "base").glob("*/segment.json")
    written = built.stat().st_mtime_ns
    found = {keyword["id"] for results in before for r in results for keyword in r["keywords"]}
    assert found == set(BUNDLED) - set(DELETED)
    with local_service(tiny_bundle_folder, state, seal_rows=4) as restarted:
        wait_until_built(restarted)
        assert ranked(restarted) == before
    assert built.stat().st_mtime_ns == written
