"""The losses: values by hand, properties, and gradients."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from training.systems.losses import (
    contrast_with_instances,
    decoupled_softmax,
    one_versus_all,
    pick_some_both_ways,
    pick_some_labels,
    probabilistic_contrast,
    triplet,
)

# Two instances, three labels. Instance 0 has labels 0 (drawn) and 1, instance 1 has label 2.
SCORES = torch.tensor([[0.8, 0.6, 0.2], [0.1, 0.3, 0.5]], dtype=torch.float64)
SAMPLED = torch.tensor([[True, False, False], [False, False, True]])
POSITIVES = torch.tensor([[True, True, False], [False, False, True]])
NEGATIVES = ~POSITIVES
INSTANCES = torch.tensor([[1.0, 0.4], [0.4, 1.0]], dtype=torch.float64)
INSTANCE_NEGATIVES = torch.tensor([[False, True], [True, False]])
TAU = 0.5


def test_the_other_positive_stands_in_neither_side_of_the_fraction() -> None:
    first = math.log(math.exp(1.6) / (math.exp(1.6) + math.exp(0.4)))
    second = math.log(math.exp(1.0) / (math.exp(1.0) + math.exp(0.2) + math.exp(0.6)))

    loss = decoupled_softmax(label_scores=SCORES, sampled=SAMPLED, negatives=NEGATIVES, tau=TAU)

    assert float(loss) == pytest.approx(-(first + second) / 2)


def test_instances_of_other_labels_join_the_denominator() -> None:
    first = math.log(math.exp(1.6) / (math.exp(1.6) + math.exp(0.4) + math.exp(0.8)))
    second = math.log(
        math.exp(1.0) / (math.exp(1.0) + math.exp(0.2) + math.exp(0.6) + math.exp(0.8))
    )

    given = {"label_scores": SCORES, "sampled": SAMPLED, "negatives": NEGATIVES, "tau": TAU}
    strangers = {"instance_scores": INSTANCES, "instance_negatives": INSTANCE_NEGATIVES}
    loss = contrast_with_instances(**given, **strangers)

    assert float(loss) == pytest.approx(-(first + second) / 2)
    strangers["instance_negatives"] = torch.zeros_like(INSTANCE_NEGATIVES)
    none = contrast_with_instances(**given, **strangers)
    assert float(none) == pytest.approx(float(decoupled_softmax(**given))), "without strangers"


def test_a_triplet_counts_the_hardest_negatives_that_violate_the_margin() -> None:
    # Instance 0: 0.2 - 0.8 + 0.3 < 0. Instance 1, with its hardest negative: 0.3 - 0.5 + 0.3 = 0.1.
    loss = triplet(label_scores=SCORES, sampled=SAMPLED, negatives=NEGATIVES, margin=0.3, hardest=1)

    assert float(loss) == pytest.approx(0.1 / 2)


def test_binary_cross_entropy_is_summed_over_labels() -> None:
    def softplus(value: float) -> float:
        return math.log1p(math.exp(value))

    first = softplus(-0.8) + softplus(-0.6) + softplus(0.2)
    second = softplus(0.1) + softplus(0.3) + softplus(-0.5)

    loss = one_versus_all(logits=SCORES, positives=POSITIVES, negatives=NEGATIVES)

    assert float(loss) == pytest.approx((first + second) / 2)


def test_siamesexmls_likelihood_counts_close_negatives() -> None:
    # P = .75 exp(2 (s - 1)) for positives at .8 and .5 and a negative at .3; others are too far.
    first = -math.log(0.75 * math.exp(-0.4)) / 2
    second = -math.log(0.75 * math.exp(-1.0)) / 2
    close = -math.log(1 - 0.75 * math.exp(-1.4)) / 2
    far = -math.log(1 - 0.75 * math.exp(-1.6)) / 2

    loss = probabilistic_contrast(
        label_scores=SCORES,
        sampled=SAMPLED,
        negatives=NEGATIVES,
        certainty=0.75,
        steepness=2.0,
        threshold=(close + far) / 2,
    )

    assert float(loss) == pytest.approx((first + second + close) / 2)


def test_pal_n_averages_the_log_softmax_of_all_positives() -> None:
    """PAL sums over all positives; POL only uses the sampled positive."""
    total = math.log(math.exp(1.6) + math.exp(1.2) + math.exp(0.4))
    second = math.log(math.exp(0.2) + math.exp(0.6) + math.exp(1.0)) - 1.0
    everything = POSITIVES | NEGATIVES
    for targets, normalized, first in (
        (POSITIVES, True, ((total - 1.6) + (total - 1.2)) / 2),
        (POSITIVES, False, (total - 1.6) + (total - 1.2)),
        (SAMPLED, True, total - 1.6),
    ):
        given = {"targets": targets, "candidates": everything, "tau": TAU, "normalized": normalized}
        loss = pick_some_labels(scores=SCORES, **given)
        assert float(loss) == pytest.approx((first + second) / 2)
        back = pick_some_labels(
            scores=SCORES.T, **given | {"targets": targets.T, "candidates": everything.T}
        )
        both = pick_some_both_ways(scores=SCORES, queries=0.3, **given)
        assert float(both) == pytest.approx(0.3 * float(loss) + 0.7 * float(back))


def losses(scores: Tensor, negatives: Tensor, sampled: Tensor = SAMPLED) -> dict[str, Tensor]:
    """Return every loss of these scores, by name."""
    given = {"label_scores": scores, "sampled": sampled, "negatives": negatives}
    strangers = {"instance_scores": INSTANCES, "instance_negatives": INSTANCE_NEGATIVES}
    likely = {"certainty": 0.75, "steepness": 3.0, "threshold": 0.0}
    picked = {"targets": sampled, "candidates": sampled | negatives}
    return {
        "contrast": contrast_with_instances(**given, **strangers, tau=TAU),
        "decoupled": decoupled_softmax(**given, tau=TAU),
        "one versus all": one_versus_all(logits=scores, positives=sampled, negatives=negatives),
        "pick some": pick_some_labels(scores=scores, **picked, tau=TAU),
        "probabilistic": probabilistic_contrast(**given, **likely),
        "triplet": triplet(**given, margin=0.3, hardest=2),
    }


every_loss = pytest.mark.parametrize("name", losses(SCORES, NEGATIVES))


@every_loss
def test_pairs_that_do_not_count_have_no_influence(name: str) -> None:
    """A filtered pair, an undrawn positive, and a row without positives may have any scores."""
    free, none = NEGATIVES.clone(), NEGATIVES.clone()
    free[1, 0], none[1] = False, False  # one filtered pair, a whole row
    one_row = SAMPLED.clone()
    one_row[1] = False
    for changes, negatives, sampled in (
        ({(1, 0): 9.0, (0, 1): -9.0}, free, SAMPLED),
        ({(1, 0): 0.9, (1, 1): -0.9, (1, 2): 0.4}, none, one_row),
    ):
        changed = SCORES.clone()
        for pair, score in changes.items():
            changed[pair] = score
        expected = float(losses(SCORES, negatives, sampled)[name])
        assert float(losses(changed, negatives, sampled)[name]) == pytest.approx(expected)


@every_loss
def test_a_row_without_negatives_is_no_trouble(name: str) -> None:
    scores = SCORES.clone().requires_grad_()
    loss = losses(scores, torch.zeros_like(NEGATIVES))[name]
    loss.backward()

    assert torch.isfinite(loss)
    assert torch.isfinite(scores.grad).all()


@every_loss
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    def loss(scores: Tensor) -> Tensor:
        return losses(scores, NEGATIVES)[name]

    assert torch.autograd.gradcheck(loss, (SCORES.clone().requires_grad_(),))


@pytest.mark.parametrize("better", [lambda s: s + 0.1 * SAMPLED, lambda s: s - 0.1 * NEGATIVES])
@every_loss
def test_better_scores_cost_less(name: str, better: Callable[[Tensor], Tensor]) -> None:
    assert float(losses(better(SCORES), NEGATIVES)[name]) < float(losses(SCORES, NEGATIVES)[name])
