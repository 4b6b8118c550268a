"""Confidences over HTTP: in every answer of a bundle that has them, as a threshold, and counted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.core.bundle import manifest
from service.http.predictions import PredictAnswer
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service
from tests.support.tiny.confidence import with_confidence

QUERIES = ["winter trail boots", "light for a tent"]


@pytest.fixture
def sure(make_bundle: Callable[..., Path], tmp_path: Path) -> Iterator[LocalService]:
    folder = with_confidence(make_bundle(name="sure"))
    with local_service(folder, tmp_path / "state", bundles=tmp_path) as service:
        yield service


def ask(service: LocalService, **options: Any) -> list[dict[str, Any]]:
    answer = service.post("/predict", {"queries": QUERIES, **options})
    assert answer.status_code == 200, answer.text
    assert_answer(answer.json(), PredictAnswer)
    return answer.json()["results"]


def test_keywords_have_confidences_and_may_be_left_out(sure: LocalService) -> None:
    whole = ask(sure, top_k=5)
    for result in whole:
        confidences = [keyword["confidence"] for keyword in result["keywords"]]
        assert confidences == sorted(confidences, reverse=True)
        assert all(0 < confidence < 1 for confidence in confidences)
    least = whole[0]["keywords"][1]["confidence"]
    for result, kept in zip(whole, ask(sure, top_k=5, min_confidence=least), strict=True):
        assert kept["keywords"] == [
            keyword for keyword in result["keywords"] if keyword["confidence"] >= least
        ]
    explained = ask(sure, top_k=5, explain=True)
    for result, same in zip(explained, whole, strict=True):
        for keyword, plain in zip(result["keywords"], same["keywords"], strict=True):
            assert keyword["confidence"] == plain["confidence"]


def test_an_empty_list_is_an_answer_and_is_counted(sure: LocalService) -> None:
    assert [result["keywords"] for result in ask(sure, min_confidence=1.0)] == [[], []]
    ask(sure)
    assert "keymatch_unanswered_queries_total 2.0" in sure.get("/metrics").text


def test_a_snapshot_keeps_the_confidences(sure: LocalService, tmp_path: Path) -> None:
    before = ask(sure)
    assert sure.post("/admin/snapshot", {"bundle": "later"}).status_code == 200
    kept, own = (manifest.read(tmp_path / name).confidence for name in ("later", "sure"))
    assert kept == own is not None
    assert sure.post("/admin/reload", {"bundle": "later"}).status_code == 200
    assert ask(sure) == before


@pytest.mark.parametrize("least", [-0.1, 1.1, "high", None])
def test_a_wrong_least_confidence_is_refused(reader: LocalService, least: object) -> None:
    answer = reader.post("/predict", {"queries": QUERIES, "min_confidence": least})
    assert_problem(answer, 422, field="min_confidence")


def test_a_bundle_without_confidences_says_so(reader: LocalService) -> None:
    assert all("confidence" not in keyword for keyword in ask(reader)[0]["keywords"])
    answer = reader.post("/predict", {"queries": QUERIES, "min_confidence": 0.5})
    problem = assert_problem(answer, 422, field="min_confidence")
    assert "no confidence" in str(problem)
