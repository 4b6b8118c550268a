"""The held-out rows, and the choices that are made on them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from service.core.errors import InvalidConfig
from tests.support.tiny.training import tiny_dataset
from training.checkpoints.choices import UNCHOSEN, Choices
from training.datasets.dataset import Dataset, Split, Texts
from training.evaluation.known_queries import FIRST
from training.loop.training_data import training_pairs
from training.recipes import recipe
from training.selection.memory_choices import (
    DEPTHS,
    HUBS,
    MEMORIZATIONS,
    MOST_LOST,
    TAUS,
    WORDS,
    choose_on,
    keeping_known,
)
from training.selection.validation import (
    Slices,
    Validation,
    ValidationSettings,
    criterion,
    default_slices,
    gain_of_rows,
    hidden_labels,
    hold_out,
    retrieve_held_out,
)


@given(count=st.integers(0, 20), seed=st.integers(0, 9))
def test_held_out_rows_leave_the_training_rows(count: int, seed: int) -> None:
    candidates = np.arange(3, 53)
    slices = hold_out(candidates, total=60, count=count, seed=seed)
    assert len(slices.held_out) == count
    assert np.isin(slices.held_out, candidates).all()
    assert sorted([*slices.kept, *slices.held_out]) == list(range(60))


def test_more_than_half_cannot_be_held_out() -> None:
    with pytest.raises(InvalidConfig, match="6 of 10 labelled rows are too many"):
        hold_out(np.arange(10), total=10, count=6, seed=0)


def test_more_data_holds_out_no_row_that_trained_before() -> None:
    """Rows are drawn by a hash of the text; drawn by number, most would have trained before."""
    texts = [f"query {number}" for number in range(1_300)]

    def held_out(rows: int, *, by_text: bool) -> set[int]:
        slices = hold_out(
            np.arange(rows), total=rows, count=200, seed=3, texts=texts if by_text else None
        )
        return set(slices.held_out.tolist())

    trained = set(range(1_000)) - held_out(1_000, by_text=True)
    assert not held_out(1_300, by_text=True) & trained
    other = set(range(1_000)) - held_out(1_000, by_text=False)
    assert len(held_out(1_300, by_text=False) & other) > 100


def test_perfect_vectors_score_perfectly() -> None:
    """A row's vector is the sum of its labels' vectors, so these are its nearest ones."""
    dataset = tiny_dataset()
    labels = np.eye(16, dtype=np.float32)
    instances = dataset.train.labels_of.toarray() / np.sqrt(2)
    slices = hold_out(np.arange(48), total=48, count=10, seed=0)
    settings = ValidationSettings(rows=10, depth=16, memorization=(0.0,))
    validation = Validation(dataset=dataset, slices=slices, settings=settings, tau=0.04)
    scores = validation.scores(instances.astype(np.float32), labels)
    assert scores[0.0]["P@1"] == 100.0
    assert scores[0.0]["R@10"] == 100.0
    assert scores[0.0]["rows"] == 10


def test_the_criterion_is_the_mean_at_the_best_lambda() -> None:
    scores = {0.0: {"P@1": 10.0, "R@100": 30.0}, 0.5: {"P@1": 20.0, "R@100": 40.0}}

    assert criterion(scores, ("P@1", "R@100")) == 30.0
    with pytest.raises(InvalidConfig, match="'P@9' is not one of P@1, R@100"):
        criterion(scores, ("P@9",))


def test_at_most_a_fifth_is_held_out_by_default() -> None:
    train = tiny_dataset().train
    slices = default_slices(train.labels_of, train.filtered)
    assert len(slices.held_out) == 48 // 5
    assert len(slices.kept) + len(slices.held_out) == len(train)


def test_what_is_best_on_the_held_out_rows_is_chosen() -> None:
    dataset = tiny_dataset()
    rng = np.random.default_rng(0)
    labels = rng.standard_normal((16, 8)).astype(np.float32)
    labels /= np.linalg.norm(labels, axis=1, keepdims=True)
    instances = rng.standard_normal((len(dataset.train), 8)).astype(np.float32)
    instances /= np.linalg.norm(instances, axis=1, keepdims=True)
    slices = default_slices(dataset.train.labels_of, dataset.train.filtered)
    held_out = retrieve_held_out(dataset, slices, instances, labels, depth=max(DEPTHS))
    start = Choices(system="rae", tau=0.07, memorization=0.5, depth=200)
    tried: list[Choices] = []

    def score(choices: Choices) -> float:
        return criterion({0.5: held_out.metrics(choices)}, ("P@1", "P@5"))

    chosen = choose_on(
        held_out,
        start,
        metrics=("P@1", "P@5"),
        words=WORDS,
        hubs=HUBS,
        on_tried=lambda choices, _: tried.append(choices),
    )

    assert {each.tau for each in tried} == {0.07, *TAUS}
    numbers, words, hubs = (
        tried[: -len(WORDS) - len(HUBS)],
        tried[-len(WORDS) - len(HUBS) : -len(HUBS)],
        tried[-len(HUBS) :],
    )
    assert [each.words for each in words] == [*WORDS]
    assert [each.hubs for each in hubs] == [*HUBS]
    last = numbers[-len(DEPTHS) * len(MEMORIZATIONS) :]
    assert {(each.depth, each.memorization) for each in last} == {
        (depth, memorization) for depth in DEPTHS for memorization in MEMORIZATIONS
    }
    assert score(chosen) == max(score(each) for each in tried)
    assert chosen.system == "rae"


def test_no_choice_loses_known_queries() -> None:
    """New queries are nearest to their label's text, but known ones were clicked on another label.

    At lambda 0, all new queries and no known ones are answered right; at 1, the other way round.
    """
    count, clicked = 16, np.arange(32) % 16
    clicked[:16] = np.roll(clicked[:16], 1)  # known queries; new ones have their own label
    labels = np.eye(count, dtype=np.float32)
    dataset = tiny_dataset()
    train = Split(
        instances=Texts.named_by_text(f"query {row}" for row in range(32)),
        labels_of=csr_matrix((np.ones(32, np.float32), (np.arange(32), clicked)), (32, count)),
        filtered=csr_matrix((32, count), dtype=bool),
    )
    dataset = Dataset(name="x", train=train, test=train, labels=dataset.labels)
    slices = Slices(kept=np.arange(16), held_out=np.arange(16, 32))
    instances = np.concatenate([labels, labels])
    held_out = retrieve_held_out(dataset, slices, instances, labels, depth=max(DEPTHS))
    start, said = Choices(system="", tau=0.04, memorization=0.7, depth=200), list[str]()
    chosen = choose_on(held_out, start, metrics=("P@1",), tell=said.append)
    assert held_out.metrics(replace(start, memorization=0.0))["P@1"] == 100.0
    assert held_out.known_metrics(replace(start, memorization=0.0))[FIRST] == 0.0
    assert held_out.known_metrics(chosen)[FIRST] >= 99.5
    assert any(
        "is best for new queries, but answers only 0.0 % of the clicks" in one for one in said
    )


@settings(max_examples=50, deadline=None)
@given(
    figures=st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100)), min_size=1, max_size=9),
    best_known=st.floats(0, 100),
)
def test_the_best_choice_that_keeps_known_queries(
    figures: list[tuple[int, float]], best_known: float
) -> None:
    tried = [replace(UNCHOSEN, depth=place + 1) for place in range(len(figures))]
    said: list[str] = []
    chosen = keeping_known(
        tried,
        score=lambda one: float(figures[one.depth - 1][0]),
        known=lambda one: figures[one.depth - 1][1],
        best_known=best_known,
        tell=said.append,
    )
    score, known = figures[chosen.depth - 1]
    allowed = [one for one in figures if one[1] >= best_known - MOST_LOST]
    assert score == max(one[0] for one in allowed or [(score, 0.0)])
    assert known >= best_known - MOST_LOST or known == max(one[1] for one in figures)
    assert bool(said) == (chosen != max(tried, key=lambda one: figures[one.depth - 1][0]))


def test_the_error_is_that_of_the_mean_over_rows() -> None:
    over = np.zeros((4, 3))
    rows = over.copy()
    rows[:2] = 0.03  # two rows gain three points in each metric
    gain = gain_of_rows(1.5, rows, over)
    assert gain.error == pytest.approx(np.std([3.0, 3.0, 0.0, 0.0], ddof=1) / 2)
    assert gain.counts and not gain_of_rows(0.5, rows, over).counts
    assert not gain_of_rows(-1.0, over, over).counts
    assert gain_of_rows(0.1, over, over).counts


def test_a_share_of_the_labels_that_have_clicks_is_hidden() -> None:
    dataset = tiny_dataset()
    hidden = hidden_labels(dataset, share=0.25, seed=0)
    assert len(hidden) == 4
    assert hidden.tolist() == sorted(set(hidden.tolist()))
    assert np.array_equal(hidden, hidden_labels(dataset, share=0.25, seed=0))
    assert not np.array_equal(hidden, hidden_labels(dataset, share=0.25, seed=1))
    assert len(hidden_labels(dataset, share=0.0, seed=0)) == 0


def test_their_clicks_count_for_nothing() -> None:
    dataset, hidden = tiny_dataset(), np.array([2, 5])
    pairs = training_pairs(dataset, hidden)
    everything = training_pairs(dataset, np.zeros(0, np.int64))
    assert not set(pairs.drawable.indices.tolist()) & {2, 5}
    left = everything.drawable.nnz - pairs.drawable.nnz
    clicks = dataset.train.labels_of[:, hidden].nnz
    assert left == clicks > 0
    assert pairs.filtered[:, hidden].nnz == clicks, "neither for nor against"
    others = np.setdiff1d(np.arange(len(dataset.labels)), hidden)
    assert pairs.filtered[:, others].nnz == 0
    assert np.array_equal(
        pairs.drawable[:, others].toarray(), everything.drawable[:, others].toarray()
    )
    filtered = csr_matrix(dataset.train.filtered.shape, dtype=bool).tolil()
    filtered[0, 7] = True
    train = replace(dataset.train, filtered=csr_matrix(filtered))
    assert training_pairs(replace(dataset, train=train), np.array([2])).filtered[0, 7]


@pytest.mark.parametrize("share", ["-0.1", "0.6"])
def test_a_share_out_of_range_is_named(share: str) -> None:
    with pytest.raises(InvalidConfig, match=r"validation\.labels"):
        recipe.load("irene-moby", [f"validation.labels={share}"])
