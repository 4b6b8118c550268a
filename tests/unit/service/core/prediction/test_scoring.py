"""The equations of prediction equal hand-computed examples, then a dense oracle."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.prediction import scoring as module
from service.core.prediction.scoring import (
    best_candidates,
    places,
    predictive_scores,
    retriever_distribution,
    value_weights,
)


def test_softmax_by_hand() -> None:
    """At tau = 1/2, similarities ln(2)/2 and 0 have logits ln 2 and 0: weights 2/3 and 1/3."""
    similarities = np.array([math.log(2) / 2, 0.0], np.float32)
    weights = retriever_distribution(similarities=similarities, tau=0.5)
    assert weights == pytest.approx([2 / 3, 1 / 3], abs=1e-7)


def test_blocks_of_the_value_matrix_by_hand() -> None:
    """Eq. 4 at lambda = 1/4: an instance keeps a quarter of its weight, a label three quarters."""
    weights = value_weights(
        weights=np.array([0.4, 0.6]), is_instance=np.array([True, False]), memorization=0.25
    )
    assert weights == pytest.approx([0.1, 0.45])


def test_predictive_scores_by_hand() -> None:
    """Key 0 (.5) votes for labels 7 and 3, key 1 (.3) for none, key 2 (.2) for label 7."""
    labels, scores = predictive_scores(
        weights=np.array([0.5, 0.3, 0.2]),
        labels=np.array([7, 3, 7], np.int32),
        votes_per_key=np.array([2, 0, 1]),
    )
    assert labels.tolist() == [3, 7]
    assert scores == pytest.approx([0.5, 0.7])


def test_candidates_that_tie_with_the_last_are_kept() -> None:
    scores = np.array([0.1, 0.5, 0.3, 0.3, 0.2, 0.3])
    assert best_candidates(scores=scores, top_k=2).tolist() == [1, 2, 3, 5]
    assert best_candidates(scores=scores, top_k=1).tolist() == [1]


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=12),
    st.integers(min_value=1, max_value=12),
)
def test_candidates_are_those_that_a_full_sort_would_reach(scores: list[float], top_k: int) -> None:
    kept = best_candidates(scores=np.array(scores), top_k=top_k)
    last = sorted(scores, reverse=True)[:top_k][-1:]
    assert [scores[place] for place in kept] == [
        score for score in scores if not last or score >= last[0]
    ]


@pytest.mark.parametrize("entries_a_vote", [0, 1_000_000])
@given(
    labels=st.lists(st.integers(0, 40), max_size=300),
    columns=st.lists(st.integers(0, 40), unique=True, max_size=30),
)
def test_places_are_found_by_a_search_and_by_a_table(
    entries_a_vote: int, labels: list[int], columns: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TABLE_ENTRIES_A_VOTE", entries_a_vote)
        found = places(np.array(labels, np.int32), among=columns)
    assert found.tolist() == [columns.index(label) if label in columns else -1 for label in labels]
