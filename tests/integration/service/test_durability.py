"""Writes answered with 200 are there after a restart, also after kill -9."""

import signal
from collections.abc import Callable
from typing import Any

from tests.support.serving import ServerProcess

QUERIES = ["ice axe", "glacier tool", "camping tent", "tarp", "warm boots", "label 17"]
LABELS = [
    {"id": "axe", "text": "ice axe", "queries": ["glacier tool"], "metadata": {"shop": "acme"}},
    {"id": "tent", "text": "tarp"},
    {"id": "axe", "text": "ice tool", "queries": ["glacier tool", "pick"]},
    *({"text": f"label {number}"} for number in range(20)),
]


def answers(server: ServerProcess) -> Any:
    """Everything that a client can see of the memory, scores to the last bit."""
    body = {"queries": QUERIES, "explain": True, "depth": 100, "top_k": 100}
    predicted = server.client.post("/predict", json=body).json()
    return predicted["version"], predicted["results"], server.client.get("/labels").json()


def write(server: ServerProcess) -> int:
    for label in LABELS:
        answer = server.client.post("/labels", json={"labels": [label]})
        assert answer.status_code == 200, answer.text
    return answer.json()["version"]


def test_a_restart_continues_at_the_same_version_with_the_same_answers(
    start: Callable[..., ServerProcess],
) -> None:
    first = start()
    assert write(first) == len(LABELS)
    before = answers(first)
    assert first.stop() == 0
    second = start()
    assert answers(second) == before
    assert write(second) == len(LABELS) + 2  # "axe" is posted in two forms again
    assert second.stop() == 0


def test_what_was_answered_survives_kill_9(start: Callable[..., ServerProcess]) -> None:
    first = start()
    assert write(first) == len(LABELS)
    first.kill()
    assert first.process.returncode == -signal.SIGKILL
    second = start()
    version, _, page = answers(second)
    assert version == len(LABELS)
    assert {label["id"] for label in page["labels"]} == {
        "axe", "tent", *(f"label {number}" for number in range(20))
    }  # fmt: skip
    assert second.client.get("/labels/axe").json()["text"] == "ice tool"
    third_answer = answers(second)
    second.kill()
    assert answers(start()) == third_answer
