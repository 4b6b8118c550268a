"""The second ranking: scores are probabilities, and labels behind the candidates follow."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.errors import BundleUnsupported, NotInBundle
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.many_queries import LabelOrder, rank_labels, retriever_distributions
from service.core.prediction.predictor import Predictor
from service.core.prediction.reranking.candidate_labels import trained_frequencies
from service.core.prediction.reranking.features import FEATURES
from service.core.prediction.reranking.many_queries import candidates_of, rerank_labels
from service.core.prediction.reranking.reranker import (
    Reranker,
    continued,
    open_reranker,
    probabilities,
)
from service.core.prediction.reranking.text_overlap import WordRarity
from service.core.types import NewLabel, Prediction, PredictOptions
from tests.support.changes import ENCODER, click, delete, put, seal
from tests.support.tiny.reranker import SumOfFeatures

QUERIES = ("a tent for two", "winter trail boots", "paddle", "")
CANDIDATES = 4


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Bundle:
    return open_bundle(make_bundle(encoder=ENCODER, reranked=CANDIDATES))


def predictor_of(bundle: Bundle) -> Predictor:
    return Predictor(ENCODER, tau=0.1, reranker=open_reranker(bundle))


def ask(view: View, **options: object) -> tuple[Prediction, ...]:
    asked = PredictOptions(top_k=6, depth=50, exact=True, candidates=CANDIDATES)
    predictor = predictor_of(view.bundle)
    return predictor.predict(view, QUERIES, replace(asked, **options)).predictions


def order(predictions: tuple[Prediction, ...]) -> list[list[str]]:
    return [[keyword.id for keyword in one.keywords] for one in predictions]


# Scores ---------------------------------------------------------------------------------------


def test_sums_become_probabilities() -> None:
    found = probabilities(np.array([-1_000.0, 0.0, 1_000.0]), slope=2.0, intercept=1.0)
    assert found == pytest.approx([0.0, 1 / (1 + np.exp(-1.0)), 1.0])


def test_labels_behind_the_candidates_keep_their_ratios() -> None:
    votes = np.array([0.5, 0.4, 0.2, 0.1])
    assert continued(np.array([0.3, 0.9]), votes).tolist() == pytest.approx([0.3, 0.9, 0.15, 0.075])
    assert continued(np.array([0.3, 0.9, 0.1, 0.2]), votes).tolist() == [0.3, 0.9, 0.1, 0.2]
    nothing = continued(np.array([0.5]), np.array([0.0, 0.0]))
    assert nothing.tolist() == [0.5, 0.0]


@given(
    scores=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    votes=st.lists(st.floats(0, 1), min_size=5, max_size=9),
)
def test_no_label_passes_a_candidate(scores: list[float], votes: list[float]) -> None:
    descending = np.array(sorted(votes, reverse=True))
    found = continued(np.array(scores), descending)
    behind = found[len(scores) :]
    assert len(found) == len(votes) and (behind <= min(scores)).all()
    assert (np.diff(behind) <= 0.0).all()


# Answers --------------------------------------------------------------------------------------


def test_the_order_is_that_of_the_trees(bundle: Bundle) -> None:
    view = KnowledgeMemory(bundle).view
    first, second = ask(view, candidates=0), ask(view)
    assert order(first) != order(second)
    for by_votes, again in zip(first, second, strict=True):
        scores = [keyword.score for keyword in again.keywords]
        assert scores == sorted(scores, reverse=True) and all(0 <= one <= 1 for one in scores)
        # The candidates are the same labels with the same votes, the others are in their order.
        best, candidates = by_votes.keywords[:CANDIDATES], again.keywords[:CANDIDATES]
        assert {k.id: k.score for k in best} == {k.id: k.votes for k in candidates}
        assert all(keyword.votes is None for keyword in best)
        assert [k.id for k in by_votes.keywords[CANDIDATES:]] == [
            k.id for k in again.keywords[CANDIDATES:]
        ]


def test_fewer_keywords_are_the_first_of_more(bundle: Bundle) -> None:
    view = KnowledgeMemory(bundle).view
    more = order(ask(view))
    for top_k in (1, 3):
        assert order(ask(view, top_k=top_k)) == [ids[:top_k] for ids in more]


def test_evidence_adds_up_to_the_votes(bundle: Bundle) -> None:
    for prediction in ask(KnowledgeMemory(bundle).view, explain=True):
        for keyword in prediction.keywords:
            assert sum(row.weight for row in keyword.evidence) == pytest.approx(keyword.votes)


def test_no_key_no_label(bundle: Bundle) -> None:
    memory = KnowledgeMemory(bundle)
    memory.apply([delete(n, label_id) for n, label_id in enumerate(list(bundle.label_ids), 1)])
    assert order(ask(memory.view)) == [[]] * len(QUERIES)


def test_equal_scores_are_in_order_of_the_id(bundle: Bundle) -> None:
    class Constant(SumOfFeatures):
        def scores(self, features: np.ndarray) -> np.ndarray:
            return np.zeros(len(features))

    assert bundle.reranker is not None
    reranker = Reranker(
        bundle.reranker.facts,
        trees=Constant(),
        rarity=WordRarity.among([]),
        trained=trained_frequencies(bundle),
    )
    options = PredictOptions(depth=50, candidates=CANDIDATES, top_k=CANDIDATES)
    view = KnowledgeMemory(bundle).view
    answer = Predictor(ENCODER, tau=0.1, reranker=reranker).predict(view, QUERIES, options)
    for ids in order(answer.predictions):
        assert ids == sorted(ids)


def test_its_time_is_a_stage_of_its_own(bundle: Bundle) -> None:
    view, predictor = KnowledgeMemory(bundle).view, predictor_of(bundle)
    seconds = predictor.predict(view, QUERIES, PredictOptions(candidates=2)).seconds
    assert seconds["rerank"] > 0.0 and seconds["score"] > 0.0
    assert "rerank" not in predictor.predict(view, QUERIES, PredictOptions()).seconds


def test_other_features_than_this_version_has(bundle: Bundle) -> None:
    assert bundle.reranker is not None
    for features, named in (
        ([*FEATURES, "moon phase"], "moon phase"),
        ([*FEATURES[1:], FEATURES[0]], "their order"),
    ):
        facts = replace(bundle.reranker.facts, features=features)
        with pytest.raises(BundleUnsupported, match=named):
            Reranker(
                facts,
                trees=SumOfFeatures(),
                rarity=WordRarity.among([]),
                trained=trained_frequencies(bundle),
            )


def test_what_a_request_asks_for(bundle: Bundle, trigram_bundle: Bundle) -> None:
    base, facts = PredictOptions(), bundle.manifest
    assert [facts.options(base, rerank=rerank).candidates for rerank in (None, True, False)] == [
        CANDIDATES,
        CANDIDATES,
        0,
    ]
    without = trigram_bundle.manifest
    assert [without.options(base, rerank=rerank).candidates for rerank in (None, False)] == [0, 0]
    with pytest.raises(NotInBundle, match="no second ranking"):
        without.options(base, rerank=True)


# Learning -------------------------------------------------------------------------------------


def test_posted_labels_and_clicks_are_read_and_snapshots_answer_alike(
    bundle: Bundle, tmp_path: Path
) -> None:
    memory = KnowledgeMemory(bundle, MemoryLimits(seal_rows=3, fan_out=2))
    memory.apply(
        [
            put(1, NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))),
            put(2, NewLabel(id="tent", text="dome tent", queries=("igloo",))),
            click(3, "rowing", "kayak", "bottle"),
            put(4, NewLabel(id="kayak", text="river kayak", queries=("paddle",))),
        ]
    )
    seal(memory, tmp_path)
    memory.apply([click(5, "paddle on the river", "kayak"), delete(6, "boots")])
    before = ask(memory.view)
    assert any("kayak" in ids for ids in order(before))

    write_snapshot(memory.view, tmp_path / "snapshot", name="snapshot", log="0f" * 16)
    opened = open_bundle(tmp_path / "snapshot")
    assert opened.reranker is not None and bundle.reranker is not None
    assert opened.reranker.facts == bundle.reranker.facts
    after = ask(KnowledgeMemory(opened, version=6).view)
    assert order(after) == order(before)
    for one, other in zip(before, after, strict=True):
        assert [k.score for k in one.keywords] == pytest.approx([k.score for k in other.keywords])


# Many queries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [3, 6])
def test_many_queries_are_ranked_as_one_by_one(bundle: Bundle, top_k: int) -> None:
    view, predictor, reranker = (
        KnowledgeMemory(bundle).view,
        predictor_of(bundle),
        open_reranker(bundle),
    )
    assert reranker is not None
    options = PredictOptions(top_k=top_k, depth=9, candidates=CANDIDATES)
    answer = predictor.predict(view, QUERIES, options)
    vectors = ENCODER.embed(ENCODER.tokenize(QUERIES, role=None))  # type: ignore[arg-type]
    similarities, rows = retrieved = predictor.retrieve(view, vectors, options)
    by_id = LabelOrder.of(list(bundle.label_ids))
    ranked = rank_labels(
        view,
        rows=rows,
        weights=retriever_distributions(similarities=similarities, rows=rows, tau=0.1),
        memorization=options.memorization,
        top_k=max(top_k, CANDIDATES),
        order=by_id,
    )
    again = rerank_labels(
        reranker,
        reranker.labels_of(view),
        candidates_of(QUERIES, vectors, retrieved, ranked),
        top_k=top_k,
        order=by_id,
    )
    for labels, scores, prediction in zip(
        again.labels.tolist(), again.scores.tolist(), answer.predictions, strict=True
    ):
        found = [
            (bundle.label_ids[label], score)
            for label, score in zip(labels, scores, strict=True)
            if label >= 0
        ]
        assert found == [(keyword.id, keyword.score) for keyword in prediction.keywords]
