"""A lambda of each query's own: features by hand, then served beside a constant lambda."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.adaptive import (
    FEATURES,
    AdaptiveMemorization,
    adaptive_memorization,
    best_similarity,
    normalised_entropy,
    retrieval_features,
)
from service.core.bundle.bundle import open_bundle
from service.core.bundle.manifest import AdaptiveFacts
from service.core.encoding.encoder import encode
from service.core.encoding.representer import Representer
from service.core.errors import BundleUnsupported, InvalidInput
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor, voting_kind
from service.core.prediction.query_cache import QueryCache
from service.core.types import PredictOptions, Role
from service.engine.loaded_bundle import Serving
from tests.support.bundles import Catalogue
from tests.support.questions import ask, scores
from tests.support.tiny_encoder import TrigramEncoder

ENCODER = TrigramEncoder()
TAU = 0.1
WEIGHTS = {"best_instance": 3.0, "best_label": -2.0, "consensus": 1.0, "entropy": 0.5}
LEARNED = AdaptiveMemorization.named(WEIGHTS, bias=-0.5)


def features(
    similarities: list[float],
    weights: list[float],
    is_instance: list[bool],
    votes: list[list[int]],
) -> Mapping[str, float]:
    """f(q) by name; `votes` are each key's labels."""
    found = retrieval_features(
        similarities=np.array(similarities, np.float32),
        weights=np.array(weights),
        is_instance=np.array(is_instance, bool),
        labels=np.array([label for voted in votes for label in voted], np.int32),
        votes_per_key=np.array([len(voted) for voted in votes], np.int64),
    )
    return dict(zip(FEATURES, found.tolist(), strict=True))


def test_features_by_hand() -> None:
    """Instances .5 for {7, 3} and .1 for {3}, labels 7 with .25 and 9 with .15."""
    found = features(
        [0.9, 0.8, 0.7, 0.6],
        [0.5, 0.25, 0.15, 0.1],
        [True, False, False, True],
        [[3, 7], [7], [9], [3]],
    )
    entropy = -sum(w * math.log(w) for w in (0.5, 0.25, 0.15, 0.1)) / math.log(4)
    assert found == pytest.approx(
        {
            "best_instance": 0.9,
            "best_label": 0.8,
            "entropy": entropy,
            "instance_mass": 0.6,
            "consensus": 1.0,  # label 3, by both instances
            "agreement": 0.5 / 0.6,  # label 7, by the first only
        }
    )


def test_a_block_that_was_not_retrieved_could_be_as_near_as_the_last_key() -> None:
    labels_only = features([0.9, 0.4], [0.8, 0.2], [False, False], [[1], [2]])
    assert (labels_only["best_instance"], labels_only["best_label"]) == pytest.approx((0.4, 0.9))
    assert labels_only["instance_mass"] == labels_only["consensus"] == labels_only["agreement"] == 0
    instances_only = features([0.9, 0.4], [0.8, 0.2], [True, True], [[1], [2]])
    assert (instances_only["best_instance"], instances_only["best_label"]) == pytest.approx(
        (0.9, 0.4)
    )
    assert (instances_only["consensus"], instances_only["agreement"]) == pytest.approx((0.8, 0.0))


def test_nothing_retrieved_has_no_features() -> None:
    assert set(features([], [], [], []).values()) == {0.0}


def test_instances_without_a_vote_have_a_weight_and_no_opinion() -> None:
    found = features([0.9, 0.5], [0.7, 0.3], [True, False], [[], [4]])
    assert found["instance_mass"] == pytest.approx(0.7)
    assert found["consensus"] == found["agreement"] == 0.0
    silent = features([0.9], [1.0], [True], [[]])
    assert silent["consensus"] == silent["agreement"] == 0.0


def test_entropy_by_hand() -> None:
    assert normalised_entropy(weights=np.full(8, 1 / 8)) == pytest.approx(1.0)
    assert normalised_entropy(weights=np.array([1.0, 0.0])) == 0.0
    assert normalised_entropy(weights=np.array([1.0])) == 0.0


def test_the_best_of_none_is_the_least_of_all() -> None:
    similarities = np.array([0.5, 0.2], np.float32)
    assert best_similarity(
        similarities=similarities, among=np.array([False, False])
    ) == pytest.approx(0.2)


def test_lambda_by_hand() -> None:
    """sigmoid(ln 3) = 3/4."""
    found = adaptive_memorization(
        features=np.array([1.0, 2.0]), weights=np.array([math.log(3), 0.5]), bias=-1.0
    )
    assert found == pytest.approx(0.75)


@given(
    st.lists(st.floats(min_value=-1.0, max_value=1.0), min_size=6, max_size=6),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300),
)
def test_neither_block_ever_loses_its_vote(values: list[float], bias: float) -> None:
    learned = replace(LEARNED, bias=bias)
    assert 0.0 < learned.of(np.array(values)) < 1.0


def test_features_go_by_name_and_unknown_ones_are_refused() -> None:
    assert LEARNED.weights.tolist() == [3.0, -2.0, 0.5, 0.0, 1.0, 0.0]
    with pytest.raises(BundleUnsupported, match="feature 'weather' is unknown"):
        AdaptiveMemorization.named({"weather": 1.0}, bias=0.0)


# Served ----------------------------------------------------------------------------------


@pytest.fixture
def folder(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle(
        encoder=ENCODER, adaptive=AdaptiveFacts(weights=WEIGHTS, bias=-0.5, enabled=True)
    )


@pytest.mark.parametrize("query", ["a tent for two", "winter trail boots", "lamp", ""])
def test_an_answer_is_that_of_the_lambda_that_was_found(folder: Path, query: str) -> None:
    view = KnowledgeMemory(open_bundle(folder)).view
    predictor = Predictor(ENCODER, tau=TAU, adaptive=LEARNED)
    options = PredictOptions(memorization=None, depth=5)
    retrieved = predictor.retrieve(view, encode(ENCODER, [query], role=Role.QUERY), options)
    [ranking] = predictor.vote(view, retrieved, options)
    assert 0.0 < ranking.memorization < 1.0
    own = ask(predictor, view, query, memorization=None, depth=5, explain=True)
    same = ask(predictor, view, query, memorization=ranking.memorization, depth=5, explain=True)
    assert own == same


def test_queries_of_one_request_have_different_lambdas(folder: Path) -> None:
    view = KnowledgeMemory(open_bundle(folder)).view
    predictor = Predictor(ENCODER, tau=TAU, adaptive=LEARNED)
    options = PredictOptions(memorization=None, depth=5)
    vectors = encode(ENCODER, ["shoes for running", "gas stove"], role=Role.QUERY)
    rankings = predictor.vote(view, predictor.retrieve(view, vectors, options), options)
    one, other = (ranking.memorization for ranking in rankings)
    assert one > other  # the first is an instance's text, the second a label's


def test_both_blocks_are_searched() -> None:
    assert voting_kind(None) is None


def test_a_memory_without_instances_and_one_without_anything(
    make_bundle: Callable[..., Path],
) -> None:
    predictor = Predictor(ENCODER, tau=TAU, adaptive=LEARNED)
    bundle = open_bundle(make_bundle(Catalogue(instances={}), encoder=ENCODER))
    view = KnowledgeMemory(bundle).view
    order = [keyword.id for keyword in ask(predictor, view, "tent", memorization=0.0)]
    assert [keyword.id for keyword in ask(predictor, view, "tent", memorization=None)] == order


def test_a_predictor_that_learned_none_wants_a_lambda(folder: Path) -> None:
    view = KnowledgeMemory(open_bundle(folder)).view
    with pytest.raises(InvalidInput, match="must be given") as caught:
        ask(Predictor(ENCODER, tau=TAU), view, "tent", memorization=None)
    assert caught.value.field == "memorization"


@pytest.mark.parametrize("enabled", [False, True])
def test_a_request_without_lambda_gets_the_bundles(
    make_bundle: Callable[..., Path], enabled: bool
) -> None:
    """Its own where that is switched on; a lambda that the request gives always wins."""
    learned = AdaptiveFacts(weights=WEIGHTS, bias=-0.5, enabled=enabled)
    bundle = open_bundle(make_bundle(encoder=ENCODER, adaptive=learned))
    facts = bundle.manifest.predictor
    serving = Serving(
        bundle=bundle,
        encoder=ENCODER,
        representer=Representer(ENCODER),
        cache=QueryCache(0),
        predictor=Predictor(ENCODER, tau=facts.tau, adaptive=facts.adaptive_memorization()),
        memory=KnowledgeMemory(bundle),
    )
    base = PredictOptions()
    assert serving.options(base, memorization=None, depth=None) == replace(
        base, memorization=None if enabled else 0.5, depth=10
    )
    assert serving.options(base, memorization=0.25, depth=None).memorization == 0.25
    answer = serving.predictor.predict(
        serving.memory.view, ["tent"], serving.options(base, memorization=None)
    )
    assert scores(answer.predictions[0].keywords)
