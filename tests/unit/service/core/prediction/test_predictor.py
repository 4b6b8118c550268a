"""Prediction from end to end of the core, beside a dense Eq. 7 and beside the papers' extremes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor, voting_kind
from service.core.types import RowKind
from tests.support.oracle import Oracle, ranked
from tests.support.questions import ALL, ask, scores, similarity_to
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue
from tests.support.tiny.encoder import TrigramEncoder

ENCODER = TrigramEncoder()
TAU = 0.1
QUERIES = ("a tent for two", "winter trail boots", "lamp", "")

queries = st.sampled_from(QUERIES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


@pytest.fixture
def predictor() -> Predictor:
    return Predictor(ENCODER, tau=TAU)


@pytest.fixture(scope="module")
def view(trigram_bundle: Bundle) -> View:
    return KnowledgeMemory(trigram_bundle).view


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle.of(Catalogue(), ENCODER)


# Eq. 7 and 8 -----------------------------------------------------------------------------


def test_a_memory_of_two_rows_by_hand(
    make_bundle: Callable[..., Path], predictor: Predictor
) -> None:
    """One instance and one label of equal text share the weight: p = lambda/2 + (1-lambda)/2."""
    catalogue = Catalogue(labels={"tent": "tent"}, instances={"tent": ("tent",)})
    view = KnowledgeMemory(open_bundle(make_bundle(catalogue, encoder=ENCODER))).view
    (keyword,) = ask(predictor, view, "tent", memorization=0.2, explain=True)
    assert keyword.score == pytest.approx(0.5)
    assert [row.weight for row in keyword.evidence] == pytest.approx([0.4, 0.1])
    assert [row.kind for row in keyword.evidence] == [RowKind.LABEL, RowKind.INSTANCE]
    assert [row.similarity for row in keyword.evidence] == pytest.approx([1.0, 1.0], abs=1e-3)


def test_at_lambda_0_the_memory_is_a_dual_encoder(predictor: Predictor, view: View) -> None:
    """Softmax over label similarities alone, however many instances lie nearer (Eq. 8)."""
    for query in QUERIES:
        weights = np.exp(similarity_to(query, list(LABELS.values()), ENCODER) / TAU)
        expected = dict(zip(LABELS, weights / weights.sum(), strict=True))
        assert scores(ask(predictor, view, query, memorization=0.0)) == pytest.approx(
            expected, abs=1e-5
        )
        shallow = ask(predictor, view, query, memorization=0.0, depth=len(LABELS))
        assert scores(shallow) == pytest.approx(expected, abs=1e-5)


def test_at_lambda_1_the_memory_is_a_knn_classifier(predictor: Predictor, view: View) -> None:
    """The nearest three instances share the weight and vote for their own labels (Eq. 8)."""
    for query in QUERIES:
        nearness = similarity_to(query, list(INSTANCES), ENCODER)
        nearest = np.argsort(-nearness)[:3]
        weights = np.exp(nearness[nearest] / TAU)
        expected = dict.fromkeys(LABELS, 0.0)
        for instance, weight in zip(nearest, weights / weights.sum(), strict=True):
            for label_id in list(INSTANCES.values())[instance]:
                expected[label_id] += weight
        found = scores(ask(predictor, view, query, memorization=1.0, depth=3))
        assert dict.fromkeys(LABELS, 0.0) | found == pytest.approx(expected, abs=1e-5)


@settings(max_examples=60)
@given(
    query=queries,
    memorization=st.floats(min_value=0.0, max_value=1.0),
    depth=st.integers(min_value=1, max_value=ALL + 3),
    tau=st.sampled_from([0.02, 0.1, 1.0]),
)
def test_any_lambda_and_depth_is_the_dense_equation(
    view: View, oracle: Oracle, query: str, memorization: float, depth: int, tau: float
) -> None:
    found = ask(Predictor(ENCODER, tau=tau), view, query, memorization=memorization, depth=depth)
    dense = oracle.scores(query, tau=tau, memorization=memorization, depth=depth)
    assert dict.fromkeys(LABELS, 0.0) | scores(found) == pytest.approx(dense, abs=1e-4)


def test_the_graph_and_a_full_scan_give_one_answer(predictor: Predictor, view: View) -> None:
    for query in QUERIES:
        graph = ask(predictor, view, query, depth=5)
        scan = ask(predictor, view, query, depth=5, exact=True)
        assert [keyword.id for keyword in graph] == [keyword.id for keyword in scan]
        assert scores(graph) == pytest.approx(scores(scan), abs=1e-5)


def test_only_one_kind_of_row_votes_at_the_extremes() -> None:
    assert voting_kind(0.0) is RowKind.LABEL
    assert voting_kind(1.0) is RowKind.INSTANCE
    assert voting_kind(0.5) is voting_kind(1e-9) is None


# Order, depth and empty blocks -----------------------------------------------------------


def test_ties_stand_in_order_of_label_id(
    make_bundle: Callable[..., Path], predictor: Predictor
) -> None:
    """Five labels of one text tie; the best two by id are kept, not the first two by column."""
    labels = dict.fromkeys(["e", "b", "d", "a", "c"], "the same text")
    bundle = open_bundle(
        make_bundle(Catalogue(labels=labels, instances={"q": tuple(labels)}), encoder=ENCODER)
    )
    view = KnowledgeMemory(bundle).view
    for memorization in (0.0, 0.5, 1.0):
        keywords = ask(predictor, view, "anything", top_k=2, memorization=memorization)
        assert [keyword.id for keyword in keywords] == ["a", "b"]


@settings(max_examples=30)
@given(query=queries, top_k=st.integers(min_value=1, max_value=8))
def test_fewer_keywords_are_a_prefix_of_more(
    view: View, oracle: Oracle, query: str, top_k: int
) -> None:
    predictor = Predictor(ENCODER, tau=TAU)
    few, all_of_them = ask(predictor, view, query, top_k=top_k), ask(predictor, view, query)
    assert few == all_of_them[:top_k]
    best = ranked(oracle.scores(query, tau=TAU, memorization=0.5), top_k=top_k)
    assert [keyword.score for keyword in few] == pytest.approx(
        [score for _, score in best], abs=1e-5
    )


def test_a_depth_beyond_the_memory_changes_nothing(predictor: Predictor, view: View) -> None:
    assert ask(predictor, view, "tent", depth=2000) == ask(predictor, view, "tent", depth=ALL)


def test_without_instances_lambda_1_has_no_answer_and_others_have(
    make_bundle: Callable[..., Path], predictor: Predictor
) -> None:
    bundle = open_bundle(make_bundle(Catalogue(instances={}), encoder=ENCODER))
    view = KnowledgeMemory(bundle).view
    assert ask(predictor, view, "tent", memorization=1.0) == ()
    assert ask(predictor, view, "tent", memorization=1.0, exact=True) == ()
    assert len(ask(predictor, view, "tent", memorization=0.5)) == len(LABELS)


def test_instances_without_a_click_weigh_but_do_not_vote(
    make_bundle: Callable[..., Path], predictor: Predictor
) -> None:
    catalogue = Catalogue(labels={"a": "tent"}, instances={"tent": ()})
    view = KnowledgeMemory(open_bundle(make_bundle(catalogue, encoder=ENCODER))).view
    assert scores(ask(predictor, view, "tent")) == pytest.approx({"a": 0.25})
    assert ask(predictor, view, "tent", memorization=1.0) == ()
