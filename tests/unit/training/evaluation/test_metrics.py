"""Each metric is checked with a slow oracle and with napkinXC, weighted ones by hand."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from napkinxc import metrics as napkinxc
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from training.evaluation import metrics
from training.evaluation import weighted_metrics as weighted

# Row 0 has the labels {0, 1, 2} and its answers are a hit, a miss, a hit. Row 1 has {3} and gets
# a miss, a hit, no answer. Row 2 has no label and must change nothing. There are five labels.
RANKED = np.array([[0, 4, 2], [0, 3, -1], [1, 2, 3]])
POSITIVES = csr_matrix(
    np.array([[1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]], dtype=np.float32)
)
WEIGHTS = np.array([2.0, 4.0, 1.0, 3.0, 9.0])


def padded(ranked: np.ndarray) -> np.ndarray:
    return np.pad(ranked, ((0, 0), (0, 100 - ranked.shape[1])), constant_values=-1)


@pytest.fixture
def outcome() -> metrics.RankingOutcome:
    return metrics.ranking_outcome(RANKED, POSITIVES)


def test_rows_without_labels_are_left_out_and_counted(outcome: metrics.RankingOutcome) -> None:
    assert outcome.unlabelled == 1
    assert outcome.sizes.tolist() == [3, 1]
    assert outcome.ranked.tolist() == RANKED[:2].tolist()
    assert outcome.hits.tolist() == [[True, False, True], [False, True, False]]


def test_f1_of_labels_and_segments_by_hand(outcome: metrics.RankingOutcome) -> None:
    # At 2, label 0: 1 hit, 2 answers, 1 positive -> 2/3; labels 1, 2: 0; label 3: 1; label 4 is
    # answered but is no positive.
    assert metrics.label_f1(outcome, k=2) == pytest.approx([2 / 3, 0, 0, 1, np.nan], nan_ok=True)
    frequency = np.array([2000, 10, 0, 11, 50])
    segments = metrics.macro_f1_by_segment(outcome, train_frequency=frequency, k=2)
    expected = {"head": 2 / 3, "torso": np.nan, "tail": 1.0, "xtail": 0.0, "unseen": 0.0}
    assert segments == pytest.approx(expected, nan_ok=True)


def test_labels_that_are_not_filtered_move_up() -> None:
    filtered = csr_matrix(np.array([[1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 0]], dtype=bool))
    expected = [[1, 2, -1], [0, 1, -1], [2, -1, -1]]  # positions in RANKED
    assert metrics.unfiltered_first(RANKED, filtered).tolist() == expected


def test_a_stored_zero_is_no_positive() -> None:
    positives = csr_matrix((np.array([1.0, 0.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    outcome = metrics.ranking_outcome(np.array([[1, 0]]), positives)
    assert outcome.sizes.tolist() == [1]
    assert outcome.hits.tolist() == [[False, True]]


def test_evaluate_names_and_percent() -> None:
    table = metrics.evaluate(padded(RANKED), POSITIVES, inverse_propensities=WEIGHTS)
    names = [f"{name}@{k}" for name in ("P", "nDCG", "PSP", "PSnDCG") for k in (1, 3, 5)]
    names += ["R@10", "R@30", "R@100", "F1@5", "coverage@5", "rows", "rows without labels"]
    assert list(table) == names
    assert table["P@1"] == pytest.approx(50)
    assert table["R@100"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert (table["rows"], table["rows without labels"]) == (2, 1)


@pytest.mark.parametrize(
    ("ranked", "message"),
    [
        (np.array([[5], [0], [0]]), "out of range"),
        (np.array([[-2], [0], [0]]), "out of range"),
        (np.array([[0], [0]]), "expected integers"),
        (np.array([0, 1, 2]), "expected integers"),
        (np.array([[0.0], [0.0], [0.0]]), "expected integers"),
        (np.array([[0, 1], [1, 1], [0, 1]]), "row 1 ranks a label twice"),
    ],
)
def test_judge_objects(ranked: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        metrics.ranking_outcome(ranked, POSITIVES)


def test_too_few_columns_or_no_labels_are_errors(outcome: metrics.RankingOutcome) -> None:
    with pytest.raises(InvalidInput, match="3 labels are ranked"):
        metrics.precision(outcome, k=4)
    with pytest.raises(InvalidInput, match="no row has a label"):
        metrics.evaluate(RANKED[2:], POSITIVES[2:], inverse_propensities=WEIGHTS)


# The oracle: row by row, with sets and loops, and without code of `metrics`.


def slow(ranked: list[list[int]], wanted: list[set[int]], weights: list[float], k: int) -> dict:
    rows = [(row[:k], truth) for row, truth in zip(ranked, wanted, strict=True) if truth]
    sums = dict.fromkeys(["P", "R", "nDCG", "gain", "best", "dgain", "dbest"], 0.0)
    for row, truth in rows:
        found = [label in truth for label in row]
        ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(truth))))
        best = sorted((weights[label] for label in truth), reverse=True)[:k]
        sums["P"] += sum(found) / k
        sums["R"] += sum(found) / len(truth)
        sums["nDCG"] += sum(hit / math.log2(p + 2) for p, hit in enumerate(found)) / ideal
        gains = [weights[label] if hit else 0.0 for label, hit in zip(row, found, strict=True)]
        sums["gain"] += sum(gains)
        sums["best"] += sum(best)
        sums["dgain"] += sum(gain / math.log2(p + 2) for p, gain in enumerate(gains)) / ideal
        sums["dbest"] += sum(gain / math.log2(p + 2) for p, gain in enumerate(best)) / ideal
    return {
        "P": sums["P"] / len(rows),
        "R": sums["R"] / len(rows),
        "nDCG": sums["nDCG"] / len(rows),
        "PSP": sums["gain"] / sums["best"],
        "PSnDCG": sums["dgain"] / sums["dbest"],
        "F1": slow_macro_f1(rows),
        "coverage": slow_coverage(rows),
    }


def slow_macro_f1(rows: list[tuple[list[int], set[int]]]) -> float:
    scores = []
    for label in set().union(*(truth for _, truth in rows)):
        tp = sum(label in row and label in truth for row, truth in rows)
        fp = sum(label in row and label not in truth for row, truth in rows)
        fn = sum(label not in row and label in truth for row, truth in rows)
        scores.append(2 * tp / (2 * tp + fp + fn))
    return sum(scores) / len(scores)


def slow_coverage(rows: list[tuple[list[int], set[int]]]) -> float:
    wanted = set().union(*(truth for _, truth in rows))
    found = set().union(*(truth & set(row) for row, truth in rows))
    return len(found) / len(wanted)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[int]], list[set[int]], list[set[int]], int]:
    labels = draw(st.integers(1, 8))
    rows = draw(st.integers(1, 6))
    some = st.sets(st.integers(0, labels - 1))
    wanted = draw(st.lists(some, min_size=rows, max_size=rows))
    filtered = draw(st.lists(some, min_size=rows, max_size=rows))
    order = st.permutations(range(labels))
    ranked = [list(draw(order))[: draw(st.integers(0, labels))] for _ in range(rows)]
    return ranked, wanted, filtered, labels


def sparse(sets: list[set[int]], labels: int) -> csr_matrix:
    dense = np.zeros((len(sets), labels), dtype=np.float32)
    for row, members in enumerate(sets):
        dense[row, sorted(members)] = 0.5
    return csr_matrix(dense)


@settings(max_examples=150, deadline=None)
@given(case=cases(), k=st.integers(1, 8), use_filter=st.booleans())
def test_fast_metrics_equal_the_oracle(case: tuple, k: int, use_filter: bool) -> None:
    ranked, wanted, filtered, labels = case
    weights = [1.0 + 0.7 * label for label in range(labels)]
    if not use_filter:
        filtered = [set() for _ in wanted]
    kept = [
        [label for label in row if label not in out]
        for row, out in zip(ranked, filtered, strict=True)
    ]
    counted = [truth - out for truth, out in zip(wanted, filtered, strict=True)]
    padded = np.array([row + [-1] * (8 - len(row)) for row in ranked])
    outcome = metrics.ranking_outcome(
        padded,
        sparse(wanted, labels),
        filtered=sparse(filtered, labels).astype(bool) if use_filter else None,
    )
    assert outcome.unlabelled == sum(not truth for truth in counted)
    if not any(counted):
        return
    expected = slow(kept, counted, weights, k)
    scored = {"inverse_propensities": np.array(weights), "k": k}
    assert metrics.precision(outcome, k=k) == pytest.approx(expected["P"])
    assert metrics.recall(outcome, k=k) == pytest.approx(expected["R"])
    assert metrics.ndcg(outcome, k=k) == pytest.approx(expected["nDCG"])
    assert metrics.psp(outcome, **scored) == pytest.approx(expected["PSP"])
    assert metrics.psndcg(outcome, **scored) == pytest.approx(expected["PSnDCG"])
    assert metrics.macro_f1(outcome, k=k) == pytest.approx(expected["F1"])
    assert metrics.coverage(outcome, k=k) == pytest.approx(expected["coverage"])


# napkinXC takes lists of labels. Its F1 at k only exists up to k = 5, and divides by the largest
# label plus one; ours divides by the number of labels with a positive.


def test_agrees_with_napkinxc() -> None:
    generator = np.random.default_rng(7)
    rows, labels = 60, 40
    dense = generator.random((rows, labels)) < 0.1
    dense[np.arange(rows), generator.integers(0, labels, rows)] = True
    ranked = np.argsort(-generator.random((rows, labels)) - dense * 0.6, axis=1)[:, :10]
    weights, positives = 1 + 5 * generator.random(labels), csr_matrix(dense.astype(np.float32))
    outcome = metrics.ranking_outcome(ranked, positives)
    truth, predicted = [row.indices.tolist() for row in positives], ranked.tolist()
    psp, psndcg = (
        partial(metric, inverse_propensities=weights) for metric in (metrics.psp, metrics.psndcg)
    )
    assert len(np.unique(positives.indices)) == labels  # therefore both divide F1 by 40
    first = [row[:5] for row in predicted]
    for name, ours, theirs in (
        ("P", metrics.precision, napkinxc.precision_at_k(truth, predicted, k=10)),
        ("R", metrics.recall, napkinxc.recall_at_k(truth, predicted, k=10)),
        ("nDCG", metrics.ndcg, napkinxc.ndcg_at_k(truth, predicted, k=10)),
        ("coverage", metrics.coverage, napkinxc.coverage_at_k(truth, predicted, k=10)),
        ("PSP", psp, napkinxc.psprecision_at_k(truth, predicted, weights, k=10)),
        ("PSnDCG", psndcg, napkinxc.psndcg_at_k(truth, predicted, weights, k=10)),
        ("F1", metrics.macro_f1, napkinxc.macro_f1_measure_at_k(truth, first, k=5)),
    ):
        values = [ours(outcome, k=k) for k in range(1, len(theirs) + 1)]
        assert values == pytest.approx(theirs), name


# Metrics with weighted clicks. Row 0 has the labels 0, 1, 2 (weights 4, 2, 1) and gets 1, a miss,
# 0. Row 1 has label 3 and gets a miss, 3, no answer. Row 2 has no label and must change nothing.
WEIGHTED_RANKED = np.array([[1, 4, 0], [0, 3, -1], [1, 2, 3]])
CLICKS = csr_matrix(np.array([[4, 2, 1, 0, 0], [0, 0, 0, 0.3, 0], [0, 0, 0, 0, 0]], np.float32))
LOG3 = 1 / math.log2(3)


@pytest.fixture
def weighted_outcome() -> metrics.RankingOutcome:
    return weighted.weighted_outcome(WEIGHTED_RANKED, CLICKS)


def test_gains_are_shares_of_the_largest_weight(weighted_outcome: metrics.RankingOutcome) -> None:
    assert weighted_outcome.hits.tolist() == [[0.5, 0.0, 1.0], [0.0, 1.0, 0.0]]
    assert weighted_outcome.best is not None
    assert weighted_outcome.best.tolist() == [[1.0, 0.5, 0.25], [1.0, 0.0, 0.0]]
    assert weighted_outcome.sizes.tolist() == [1.75, 1.0]


def test_weighted_metrics_by_hand(weighted_outcome: metrics.RankingOutcome) -> None:
    best = 1 + 0.5 * LOG3 + 0.25 / 2
    for metric, at_one, at_three in (
        (metrics.precision, (0.5 + 0) / 2, (1.5 / 3 + 1 / 3) / 2),
        (metrics.recall, (0.5 / 1.75 + 0) / 2, (1.5 / 1.75 + 1) / 2),
        (metrics.ndcg, (0.5 + 0) / 2, ((0.5 + 1 / 2) / best + LOG3) / 2),
    ):
        assert metric(weighted_outcome, k=1) == pytest.approx(at_one)
        assert metric(weighted_outcome, k=3) == pytest.approx(at_three)


def test_a_filtered_pair_counts_neither_as_ranked_nor_as_a_positive() -> None:
    filtered = csr_matrix(np.array([[1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0] * 5], dtype=bool))
    outcome = weighted.weighted_outcome(WEIGHTED_RANKED, CLICKS, filtered=filtered)
    assert outcome.hits.tolist() == [[1.0, 0.0, 0.0]]
    assert outcome.best is not None and outcome.best.tolist() == [[1.0, 0.5, 0.0]]
    assert outcome.sizes.tolist() == [1.5]


def test_the_table_is_in_percent_under_names_of_its_own() -> None:
    table = weighted.weighted_table(padded(WEIGHTED_RANKED), CLICKS)
    names = [f"{name}@{k}" for name in ("P", "nDCG") for k in (1, 3, 5)]
    assert list(table) == [f"weighted {name}" for name in (*names, "R@10", "R@30", "R@100")]
    assert table["weighted P@1"] == pytest.approx(25.0)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_equal_weights_give_the_plain_metrics(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rows, labels, k = rng.integers(1, 6), int(rng.integers(3, 9)), 3
    scale = rng.uniform(0.1, 9.0, size=(rows, 1)).astype(np.float32)
    truth = rng.random((rows, labels)) < 0.4
    truth[0, 0] = True
    ranked = np.array([rng.permutation(labels)[:k] for _ in range(rows)])
    filtered = csr_matrix((rng.random((rows, labels)) < 0.1) & (np.arange(labels) > 0))
    ranked, positives = padded(ranked), csr_matrix(truth * scale)
    found = weighted.weighted_table(ranked, positives, filtered=filtered)
    plain = metrics.evaluate(
        ranked, positives, inverse_propensities=np.ones(labels), filtered=filtered
    )
    for name, value in found.items():
        assert value == pytest.approx(plain[name.removeprefix("weighted ")]), name


def test_weights_differ_only_within_a_row() -> None:
    assert weighted.weights_differ(CLICKS)
    assert not weighted.weights_differ(csr_matrix(np.array([[2.0, 2.0], [3.0, 0.0], [0.0, 0.0]])))
    assert not weighted.weights_differ(csr_matrix((2, 3)))
