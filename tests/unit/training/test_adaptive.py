"""Learning lambda by query: objectives by hand, and what is learned beside what is served."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.sparse import csr_matrix

from service.core.adaptive import FEATURES, AdaptiveMemorization
from service.core.bundle.bundle import open_bundle
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions, Role
from tests.support.bundles import make_bundle
from tests.support.tiny_encoder import TrigramEncoder
from training.adaptive import (
    GRID,
    OBJECTIVES,
    Examples,
    best_constant,
    best_lambda,
    block_scores,
    choose_fit,
    expected_utility,
    fit,
    memorizations,
    query_features,
    sigmoid,
    utilities_at,
)
from training.evaluation.prediction import Keys, predict, rank, retrieve

QUERIES = ["running shoes", "tent lamp", "drinks", "boots for the trail", "x"]
WEIGHTS = {name: weight for weight, name in enumerate(FEATURES, start=-2)}
ENCODER = TrigramEncoder()


def keys_of(folder: Path) -> tuple[Keys, np.ndarray]:
    """The trigram bundle's keys, and the queries' vectors."""
    bundle = open_bundle(folder)
    votes = csr_matrix(
        (np.ones(len(bundle.indices)), np.array(bundle.indices), np.array(bundle.indptr)),
        shape=(bundle.instances, bundle.labels),
    )
    keys = Keys(keys=np.asarray(bundle.keys), labels_of=votes, uids=list(bundle.label_ids))
    return keys, ENCODER.embed(ENCODER.tokenize(QUERIES, role=Role.QUERY))


@pytest.mark.parametrize("depth", [1, 3, 20])
def test_what_is_measured_is_what_is_served(tmp_path: Path, depth: int) -> None:
    """Lambda and ranking of every query, also where one block is not among the retrieved."""
    learned = AdaptiveMemorization.named(WEIGHTS, bias=-0.5)
    folder = make_bundle(tmp_path / "bundle", encoder=ENCODER)
    keys, vectors = keys_of(folder)
    both = retrieve(keys, vectors, depth=depth).both
    lambdas = memorizations(learned, query_features(keys, both, tau=0.1))
    ranked = rank(block_scores(keys, both, tau=0.1).mixed(lambdas), keys, 6)

    view = KnowledgeMemory(open_bundle(folder)).view
    predictor = Predictor(ENCODER, tau=0.1, adaptive=learned)
    options = PredictOptions(top_k=6, memorization=None, depth=depth, exact=True)
    served = list(predictor.vote(view, predictor.retrieve(view, vectors, options), options))

    assert [one.memorization for one in served] == pytest.approx(lambdas.tolist())
    assert len(set(lambdas.round(3).tolist())) > 1
    for line, one in zip(ranked, served, strict=True):
        assert [column for column in line if column >= 0] == one.columns.tolist()


def test_one_lambda_for_all_is_the_plain_prediction(tmp_path: Path) -> None:
    keys, vectors = keys_of(make_bundle(tmp_path / "bundle", encoder=ENCODER))
    found = retrieve(keys, vectors, depth=5)
    mixed = block_scores(keys, found.both, tau=0.1).mixed(np.full(len(QUERIES), 0.3))
    plain = predict(keys, found.voting(0.3, 5), tau=0.1, memorization=0.3, top_k=6)
    assert rank(mixed, keys, 6).tolist() == plain.tolist()


# Two queries, one feature that tells them apart: the more lambda the better, and the less.
TWO = Examples(
    features=np.array([[1.0], [-1.0]]),
    utilities=np.stack([sigmoid(GRID), sigmoid(-GRID)]),
)


def test_best_lambda_by_hand() -> None:
    """The first query is best at the grid's end, the second at its start, both matter equally."""
    value, slope = best_lambda(TWO)(np.zeros(2))
    end = sigmoid(GRID)[-1]
    assert value == pytest.approx(-math.log(2.0))
    assert slope == pytest.approx([0.5 * (end - 0.5), -0.5 * (end - 0.5)])


def test_expected_utility_of_a_straight_line_is_the_line() -> None:
    straight = Examples(features=np.ones((1, 1)), utilities=(GRID / 10.0)[None, :])
    value, slope = expected_utility(straight)(np.array([1.3]))
    assert (value, slope[0]) == pytest.approx((0.13, 0.1), abs=1e-3)
    _, beyond = expected_utility(straight)(np.array([7.0]))
    assert beyond[0] == 0.0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    objective = OBJECTIVES[name](TWO)
    logits = np.array([0.37, -0.81])
    expected = approx_fprime(logits, lambda at: objective(at)[0], 1e-6)
    assert objective(logits)[1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_feature_that_tells_is_learned(name: str) -> None:
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], size=200)
    data = Examples(
        features=np.stack([signs + 0.1 * rng.standard_normal(200), np.full(200, 3.0)], axis=1),
        utilities=sigmoid(signs[:, None] * GRID),
    )
    learned = fit(data, name, penalty=1e-4)
    assert learned.weights[0] > 1.0
    assert learned.weights[1] == 0.0  # a constant feature says nothing
    constant = np.full(200, best_constant(data))
    own = utilities_at(data, memorizations(learned, data.features)).mean()
    assert own > utilities_at(data, constant).mean() + 0.2


def test_noise_is_not_preferred_to_the_best_constant_by_much() -> None:
    rng = np.random.default_rng(0)
    curve = 1.0 - (GRID / 6.0 - 0.3) ** 2
    data = Examples(
        features=rng.standard_normal((300, 3)),
        utilities=curve + 0.02 * rng.standard_normal((300, len(GRID))),
    )
    chosen = choose_fit(data, rng=rng)
    assert chosen.own.mean() == pytest.approx(chosen.constant.mean(), abs=0.01)
    assert sigmoid(GRID[0]) < best_constant(data) < sigmoid(GRID[-1])


def test_utility_between_two_lambdas_is_interpolated() -> None:
    data = Examples(features=np.ones((1, 1)), utilities=(GRID / 10.0)[None, :])
    assert utilities_at(data, sigmoid(np.array([1.3]))) == pytest.approx([0.13])


def test_every_row_is_judged_by_a_fit_to_others() -> None:
    """A feature that tells is found, and without one nothing can be."""
    signs = np.where(np.arange(40) % 2, 1.0, -1.0)
    data = Examples(features=signs[:, None], utilities=sigmoid(signs[:, None] * GRID))
    chosen = choose_fit(data, rng=np.random.default_rng(0))
    assert chosen.own.shape == chosen.constant.shape == (40,)
    assert chosen.own.min() > 0.9
    assert chosen.p is not None
    assert chosen.p < 1e-6
    silent = Examples(features=np.zeros((40, 1)), utilities=data.utilities)
    same = choose_fit(silent, rng=np.random.default_rng(0))
    assert same.own.mean() < 0.6
