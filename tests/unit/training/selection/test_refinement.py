"""The representation of novel labels is chosen on labels hidden from training."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from training.checkpoints.choices import Choices
from training.selection import refinement
from training.selection.hidden_label_folds import LabelFoldData, folds, row_of_each_label
from training.selection.refinement import (
    PAPERS,
    RefinementChoice,
    choose_refinement,
    least_gain,
    loss_among_all,
)

LABELS, HIDDEN, DIMENSION = 900, 300, 6
NAN = float("nan")


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def held_out(*, good: bool, hidden: int = 0, queries: bool = True) -> LabelFoldData:
    """Make queries at their labels' classifiers; a `good` combiner predicts these positions."""
    rng = np.random.default_rng(0)
    texts, moves = rng.standard_normal((2, LABELS, DIMENSION))
    places = unit(texts + moves[np.arange(LABELS) // 3 * 3])  # same move for three labels each
    texts = unit(texts)
    wrong = unit(rng.standard_normal((LABELS, DIMENSION)))

    def combine(own: np.ndarray, classifiers: np.ndarray, present: np.ndarray) -> np.ndarray:
        nearest = np.argmax(own @ texts.T, axis=1)
        return (places if good else wrong)[nearest]

    return LabelFoldData(
        texts=texts,
        keys=texts,
        classifiers=places,
        label_queries=unit(places + 0.3 * wrong) if queries else np.full_like(texts, NAN),
        held_out_queries=places,
        positives=csr_matrix(np.eye(LABELS, dtype=np.float32)),
        filtered=csr_matrix((LABELS, LABELS), dtype=bool),
        combine=combine,
        choices=Choices(system="irene", tau=0.05, memorization=0.3, depth=50),
        hidden=np.arange(hidden),
    )


@pytest.fixture(scope="module")
def choose() -> Iterator[Callable[..., RefinementChoice]]:
    """`choose(good=..., hidden=...)` returns the cached choice for this kind of data."""

    @cache
    def chosen(*, good: bool, hidden: int = HIDDEN) -> RefinementChoice:
        return choose_refinement(held_out(good=good, hidden=hidden), seed=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refinement, "MEASURED_AMONG_ALL", 3)
        yield chosen


Choose = Callable[..., RefinementChoice]


@pytest.mark.parametrize("hidden", [0, HIDDEN])
def test_a_combiner_is_followed_as_far_as_it_helps(hidden: int, choose: Choose) -> None:
    assert choose(good=True, hidden=hidden).refinement.strength >= 0.5
    bad = choose(good=False, hidden=hidden).refinement
    assert bad.strength == min(refinement.STRENGTHS)


def test_survivors_are_pooled_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refinement, "MEASURED_AMONG_ALL", 2)
    found = choose_refinement(held_out(good=True, hidden=HIDDEN), pooled=True, seed=0).refinement
    assert found.pooling in refinement.POOLINGS
    assert found.residual in refinement.RESIDUALS
    assert found.strength >= 0.5


def test_a_query_that_lies_near_draws_the_key(choose: Choose) -> None:
    found = choose(good=False)
    assert found.refinement.query_weight > 0
    assert least_gain(found.one_shot.among_novel, found.zero_shot.among_novel) > 0
    assert "one-shot P@1" in str(found)


def test_keys_are_as_long_as_costs_nothing_among_all(choose: Choose) -> None:
    chosen = choose(good=True)
    for refined in (chosen.zero_shot, chosen.one_shot):
        assert loss_among_all(refined, chosen.text) == 0.0
    assert chosen.refinement.length == max(refinement.LENGTHS)
    again = choose_refinement(held_out(good=True, hidden=HIDDEN), seed=0)
    assert again == chosen, "the same choice every time"


def test_where_every_length_costs_the_one_that_costs_least_is_taken(choose: Choose) -> None:
    data, chosen = held_out(good=False, hidden=HIDDEN), choose(good=False)
    least = loss_among_all(chosen.zero_shot, chosen.text)
    assert least < 0.0
    (fold,) = folds(data, seed=0)
    for length in refinement.LENGTHS:
        one = replace(chosen.refinement, length=length)
        keys = fold.keys(fold.combined(one, revealed=False), one, revealed=False)
        found = replace(chosen.zero_shot, among_all=fold.among_all.measure(keys))
        assert loss_among_all(found, chosen.text) <= least


def test_where_nothing_can_be_asked_the_papers_numbers_stay() -> None:
    found = choose_refinement(held_out(good=True, queries=False), seed=0)
    assert found.refinement == PAPERS
    assert "the paper's numbers are used" in str(found)


def test_a_row_of_each_label_is_one_of_its_own() -> None:
    labels_of = csr_matrix(np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 1]], np.float32))
    for seed in range(10):
        rows = row_of_each_label(labels_of, among=np.array([0, 1, 2]), seed=seed)
        assert rows[2] == -1, "its only row is not among them"
        assert labels_of[rows[0], 0] and labels_of[rows[1], 1]
        assert rows[0] in (0, 1)


def test_a_posted_query_votes_beside_its_labels_key() -> None:
    data = held_out(good=False, hidden=HIDDEN)
    (fold,) = folds(data, seed=0)
    alone, beside = (fold.measure(fold.texts, revealed=revealed) for revealed in (False, True))
    assert least_gain(beside, alone) > 0
    only_keys = replace(fold, choices=replace(data.choices, memorization=0.0))
    assert only_keys.measure(fold.texts, revealed=True) == pytest.approx(alone)
