"""The reranker over HTTP: by default, on request, and after reloads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service
from tests.support.tiny.bundles import LABELS, make_bundle

ASKED = {"queries": ["warm boots for the trail", "a tent for two"], "top_k": 6}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("shelf") / "reranked", reranked=4)


@pytest.fixture
def reranked(bundle: Path, tmp_path: Path) -> Iterator[LocalService]:
    with local_service(bundle, tmp_path / "state") as service:
        yield service


def keywords(service: LocalService, **how: Any) -> list[list[dict[str, Any]]]:
    answer = service.post("/predict", {**ASKED, **how})
    assert answer.status_code == 200, answer.text
    return [result["keywords"] for result in answer.json()["results"]]


def test_a_bundle_with_trees_ranks_a_second_time_unless_told_otherwise(
    reranked: LocalService,
) -> None:
    again, votes = keywords(reranked), keywords(reranked, rerank=False)
    assert again == keywords(reranked, rerank=True) == keywords(reranked, rerank=None)
    assert [[k["id"] for k in one] for one in again] != [[k["id"] for k in one] for one in votes]
    for one in (*again, *votes):
        assert [k["score"] for k in one] == sorted((k["score"] for k in one), reverse=True)


def test_explained_keywords_have_their_votes(reranked: LocalService) -> None:
    explained, first = keywords(reranked, explain=True), keywords(reranked, rerank=False)
    for one, by_votes in zip(explained, first, strict=True):
        votes = {keyword["id"]: keyword["score"] for keyword in by_votes}
        for keyword in one:
            weights = sum(row["weight"] for row in keyword["evidence"])
            assert weights == pytest.approx(keyword["votes"]) == votes[keyword["id"]]
    for how in ({}, {"rerank": False, "explain": True}):
        assert all("votes" not in keyword for one in keywords(reranked, **how) for keyword in one)


def test_each_result_says_what_its_scores_are(reranked: LocalService) -> None:
    """Each result names the kind of its scores, even if it has no keyword."""
    for how in ({}, {"explain": True}, {"queries": ["tent"] * 200, "top_k": 10}):
        for rerank, kind in ((None, "probability"), (True, "probability"), (False, "votes")):
            asked = {**ASKED, **how, "rerank": rerank}
            results = reranked.post("/predict", asked).json()["results"]
            assert {result["score_kind"] for result in results} == {kind}, asked
    for label in LABELS:
        assert reranked.request("DELETE", f"/labels/{label}").status_code == 200
    [result] = reranked.post("/predict", {"queries": ["tent"]}).json()["results"]
    assert (result["score_kind"], result["keywords"]) == ("probability", [])


def test_a_reload_says_that_scores_change_their_meaning(bundle: Path, tmp_path: Path) -> None:
    make_bundle(bundle.parent / "plain")
    make_bundle(bundle.parent / "plain-too")
    with local_service(bundle, tmp_path / "state") as service:
        changes = []
        for name in ("plain", "plain-too", "reranked"):
            answer = service.post("/admin/reload", {"bundle": name}).json()
            assert (answer.pop("bundle"), answer.pop("version")) == (name, len(changes) + 1)
            [result] = service.post("/predict", {"queries": ["tent"]}).json()["results"]
            assert service.get("/info").json()["score_kind"] == result["score_kind"]
            changes.append((answer, result["score_kind"]))
    assert changes == [
        ({"score_kind": "votes", "score_kind_before": "probability"}, "votes"),
        ({}, "votes"),
        ({"score_kind": "probability", "score_kind_before": "votes"}, "probability"),
    ]


def test_a_bundle_without_trees_says_so(service: LocalService) -> None:
    assert keywords(service) == keywords(service, rerank=False)
    problem = assert_problem(service.post("/predict", {**ASKED, "rerank": True}), 422)
    assert "no second ranking" in problem["detail"]
    assert problem["errors"][0]["field"] == "rerank"


def test_info_and_metrics_show_it(reranked: LocalService) -> None:
    facts = reranked.get("/info").json()["bundle"]["reranker"]
    assert facts["candidates"] == 4 and "label frequency" in facts["features"]
    keywords(reranked)
    counted = 'keymatch_stage_seconds_count{stage="rerank"}'
    [line] = [line for line in reranked.get("/metrics").text.splitlines() if counted in line]
    assert float(line.split()[-1]) >= 1
