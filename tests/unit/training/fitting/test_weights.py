"""Misleading weights are noticed on held-out rows, and the kept memory votes without them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from training.checkpoints.choices import UNCHOSEN
from training.evaluation.prediction import OfflineMemory, retrieve
from training.fitting.trial import (
    best_relevance,
    chosen_with,
    measure,
    weight_lines,
    weight_trials,
)
from training.selection.validation import HeldOutRetrieval

CHOICES = replace(UNCHOSEN, memorization=1.0, depth=2)
QUERIES = 12


def held_out(*, weight: float) -> HeldOutRetrieval:
    """Return two equally near instances; both vote for the right label 0, one also for label 1."""
    memory = OfflineMemory(
        keys=np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], np.float16),
        labels_of=csr_matrix(np.array([[1.0, weight], [1.0, 0.0]], np.float32)),
        label_ids=("right", "wrong"),
    )
    queries = np.tile(np.array([[1.0, 0.0]], np.float32), (QUERIES, 1))
    return HeldOutRetrieval(
        rows_of_training=np.arange(2, 2 + QUERIES),
        memory=memory,
        retrieved=retrieve(memory, queries, depth=2),
        positives=csr_matrix(np.tile([1.0, 0.0], (QUERIES, 1))),
        filtered=csr_matrix((QUERIES, 2), dtype=bool),
        inverse_propensities=np.ones(2),
    )


def lines(weight: float) -> list[str]:
    split = held_out(weight=weight)
    return list(weight_lines(weight_trials([split], [measure(split, CHOICES)])))


def test_misleading_weights_are_told() -> None:
    """Binary votes are 1 + 1 for label 0 and 1 for label 1; weighted ones are 0.02 + 1 and 1.98."""
    compared, advice = lines(weight=100.0)
    assert compared.startswith("weights of the memory's votes, mean on the held-out rows: given ")
    assert advice.startswith("binary gains ")
    assert advice.endswith(
        "the memory of what is kept votes with relevance binary"
        " (`export bundle --relevance given` overrules it)"
    )


@pytest.mark.parametrize(("weight", "best"), [(100.0, "binary"), (0.5, "given"), (1.0, None)])
def test_the_best_relevance(weight: float, best: str | None) -> None:
    split = held_out(weight=weight)
    assert best_relevance(weight_trials([split], [measure(split, CHOICES)])) == best


def test_settings_are_chosen_for_the_votes_that_are_kept() -> None:
    split = held_out(weight=100.0)
    given = measure(split, CHOICES)
    binary = chosen_with("binary", split, given)
    assert binary.choices.relevance == "binary"
    assert binary.metrics["P@1"] > given.metrics["P@1"]
    kept = chosen_with("given", split, given)
    assert kept.choices == replace(CHOICES, relevance="given")
    assert kept.metrics == given.metrics


def test_weights_that_do_no_harm_are_compared_only() -> None:
    assert len(lines(weight=0.5)) == 1


def test_without_weights_nothing_is_said() -> None:
    assert lines(weight=1.0) == []
