"""POST /predict: the answer, the order of its keywords, and the effect of each option."""

import threading
import time
from typing import Any

import pytest

from service.http.predictions import PredictAnswer
from service.settings import EngineSettings
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, wait_for
from tests.support.tiny.bundles import LABELS


def predict(service: LocalService, *queries: str, **options: Any) -> dict[str, Any]:
    answer = service.post("/predict", {"queries": queries, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()


def results(service: LocalService, *queries: str, **options: Any) -> list[dict[str, Any]]:
    return predict(service, *queries, **options)["results"]


def evidence(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for keyword in result["keywords"] for row in keyword["evidence"]]


def test_the_answer_has_the_documented_shape(reader: LocalService) -> None:
    answer = predict(reader, "warm boots")
    assert_answer(answer, PredictAnswer)
    assert (answer["bundle"], answer["version"]) == ("tiny", 0)
    [result] = answer["results"]
    assert result.keys() == {"query", "score_kind", "keywords"}
    assert result["score_kind"] == "votes"
    for keyword in result["keywords"]:
        assert keyword.keys() == {"id", "text", "score", "novel", "match"}
        assert keyword["text"] == LABELS[keyword["id"]]
        assert keyword["novel"] is False
    assert result["keywords"][0]["id"] == "boots"


def test_explain_adds_evidence_and_metadata_and_changes_nothing_else(reader: LocalService) -> None:
    [plain], [explained] = results(reader, "trail"), results(reader, "trail", explain=True)
    for keyword in explained["keywords"]:
        assert keyword.pop("metadata") == {}
        for row in keyword.pop("evidence"):
            assert row.keys() == {"kind", "text", "similarity", "weight"}
            assert row["kind"] in ("instance", "label")
    assert explained == plain


def test_options_left_out_have_the_documented_defaults(reader: LocalService) -> None:
    of_the_bundle = {"memorization": 0.5, "depth": 10}
    written_out = {"top_k": 10, "explain": False, "min_version": 0, "deadline_ms": 1000}
    assert results(reader, "tent", **written_out, **of_the_bundle) == results(reader, "tent")


@pytest.mark.parametrize(
    ("memorization", "kinds"), [(0, {"label"}), (1, {"instance"}), (0.3, {"label", "instance"})]
)
def test_memorization_weighs_instances_against_labels(
    reader: LocalService, memorization: float, kinds: set[str]
) -> None:
    [result] = results(reader, "tent", memorization=memorization, depth=14, explain=True)
    assert {row["kind"] for row in evidence(result)} == kinds


def test_depth_is_the_number_of_keys_that_may_vote(reader: LocalService) -> None:
    for depth in (1, 2, 5, 2000):
        [result] = results(reader, "tent", depth=depth, explain=True)
        voters = {(row["kind"], row["text"]) for row in evidence(result)}
        assert len(voters) <= depth
    assert len(voters) == 13  # all rows except the instance without labels


def test_top_k_bounds_the_keywords(reader: LocalService) -> None:
    [all_of_them] = results(reader, "tent", top_k=1000)
    assert len(all_of_them["keywords"]) == 6
    for top_k in (1, 3):
        [few] = results(reader, "tent", top_k=top_k)
        assert few["keywords"] == all_of_them["keywords"][:top_k]


def test_256_queries_are_answered_in_their_order(reader: LocalService) -> None:
    queries = [f"{text} {number}" for number in range(43) for text in LABELS.values()][:256]
    answers = results(reader, *queries, top_k=1)
    assert [answer["query"] for answer in answers] == queries
    for query, answer in list(zip(queries, answers, strict=True))[::50]:
        [alone] = results(reader, query, top_k=1)
        assert answer["keywords"][0]["id"] == alone["keywords"][0]["id"]


def test_queries_are_trimmed_and_equal_ones_each_answered(reader: LocalService) -> None:
    first, second = results(reader, "tent", "tent")
    assert first == second
    assert results(reader, "  warm boots \t\r\n") == results(reader, "warm boots")


def test_any_text_is_answered(reader: LocalService) -> None:
    queries = ["a\tb", "\u200bx", "\U0001d4b7", "靴", "🥾" * 1024, "'; --", "x" * 2048]
    answers = results(reader, *(f"{' ' * 5000}{query}" for query in queries))
    assert [answer["query"] for answer in answers] == queries
    assert all(answer["keywords"] for answer in answers)


@pytest.mark.parametrize("query", ["\0", "a\0b", "a\x1bb", "\u200b", "\u3164"])
def test_control_characters_and_queries_that_show_nothing_are_refused(
    reader: LocalService, query: str
) -> None:
    answer = reader.post("/predict", {"queries": ["tent", query]})
    assert_problem(answer, 422, field="queries.1")


def test_the_last_of_two_equal_keys_counts(reader: LocalService) -> None:
    json = {"content-type": "application/json"}
    answer = reader.post("/predict", content=b'{"queries":["a"],"queries":["b"]}', headers=json)
    assert [result["query"] for result in answer.json()["results"]] == ["b"]


def test_min_version_waits_for_a_write_that_comes(service: LocalService) -> None:
    waiting: list[dict[str, Any]] = []
    reading = threading.Thread(
        target=lambda: waiting.append(
            predict(service, "ice axe", min_version=1, deadline_ms=60_000)
        )
    )
    reading.start()
    wait_for(lambda: "keymatch_version_waiters 1.0" in service.get("/metrics").text)
    assert not waiting
    version = service.post("/labels", {"labels": [{"text": "ice axe"}]}).json()["version"]
    reading.join()
    for answer in (waiting[0], predict(service, "ice axe", min_version=version)):
        assert answer["version"] == version == 1
        assert answer["results"][0]["keywords"][0]["id"] == "ice axe"


def test_a_version_that_does_not_come_is_a_504_and_one_that_cannot_a_422(
    reader: LocalService,
) -> None:
    most = 2 * EngineSettings().queue_labels  # beyond all writes that can be under way
    body = {"queries": ["tent"], "min_version": most + 1, "deadline_ms": 60_000}
    assert_problem(reader.post("/predict", body), 422, field="min_version")
    for version in (1, most):
        start = time.monotonic()
        waiting = {"queries": ["tent"], "min_version": version, "deadline_ms": 150}
        assert_problem(reader.post("/predict", waiting), 504)
        assert 0.15 <= time.monotonic() - start < 30
    assert predict(reader, "tent")["version"] == 0
