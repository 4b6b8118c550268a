"""Writes answered with 200 survive a restart, even after kill -9."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.http.problems import assert_problem
from tests.support.serving import ServerProcess
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
