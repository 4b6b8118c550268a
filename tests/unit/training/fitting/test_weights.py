"""Weights that mislead are noticed on held-out rows, and the user is told what to do."""

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from training.checkpoints.choices import UNCHOSEN
from training.evaluation.prediction import OfflineMemory, retrieve
from training.fitting.trial import measure
from training.fitting.weights import weight_lines, weight_trials
from training.selection.validation import HeldOutRetrieval

CHOICES = replace(UNCHOSEN, memorization=1.0, depth=2)
QUERIES = 12


def held_out(*, weight: float) -> HeldOutRetrieval:
    """Two instances are equally near; both vote for label 0, which is right, one for label 1."""
    memory = OfflineMemory(
        keys=np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], np.float16),
        labels_of=csr_matrix(np.array([[1.0, weight], [1.0, 0.0]], np.float32)),
        label_ids=("right", "wrong"),
    )
    queries = np.tile(np.array([[1.0, 0.0]], np.float32), (QUERIES, 1))
    return HeldOutRetrieval(
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
    """Binary, label 0 has 1 + 1 votes and label 1 has 1; as given, 0.02 + 1 and 1.98."""
    compared, advice = lines(weight=100.0)
    assert compared.startswith("weights of the memory's votes, mean on the held-out rows: given ")
    assert advice.startswith("binary gains ")
    assert advice.endswith("`python -m training data pairs --relevance binary` makes such data")


def test_weights_that_do_no_harm_are_compared_only() -> None:
    assert len(lines(weight=0.5)) == 1


def test_without_weights_nothing_is_said() -> None:
    assert lines(weight=1.0) == []
