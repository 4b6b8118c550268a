"""Mixed scores: each normalisation by hand, and the mix beside a slow, obvious one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.prediction.many_queries import LabelOrder, RankedLabels
from training.evaluation.mixed_scores import (
    NORMALIZATIONS,
    rank_mixed,
    reciprocal_rank,
    root_of_share,
    share_of_best,
    share_of_sum,
    union_of,
)

ORDER = LabelOrder.of(["d", "c", "b", "a"])  # label 3 comes first


def ranked(*rows: list[tuple[int, float]], k: int = 3) -> RankedLabels:
    labels, scores = np.full((len(rows), k), -1, np.int64), np.zeros((len(rows), k))
    for row, pairs in enumerate(rows):
        for place, (label, score) in enumerate(pairs):
            labels[row, place], scores[row, place] = label, score
    return RankedLabels(labels=labels, scores=scores)


def test_normalisations_by_hand() -> None:
    scores = np.array([[0.5, 0.3, 0.0], [0.0, 0.0, 0.0]])
    assert share_of_sum(scores)[0] == pytest.approx([0.625, 0.375, 0.0])
    assert share_of_best(scores)[0] == pytest.approx([1.0, 0.6, 0.0])
    assert root_of_share(scores)[0] == pytest.approx([0.625**0.5, 0.375**0.5, 0.0])
    assert reciprocal_rank(scores)[0] == pytest.approx([1 / 61, 1 / 62, 0.0])
    for normalize in NORMALIZATIONS.values():
        assert normalize(scores)[1].tolist() == [0.0, 0.0, 0.0], "a query without answers"


def test_the_union_is_mixed_by_weights() -> None:
    one = ranked([(0, 0.6), (1, 0.4)], [(2, 1.0)])
    other = ranked([(1, 0.5), (3, 0.5)], [])
    candidates = union_of([one, other], normalization="share", order=ORDER)
    assert candidates.labels.tolist() == [[3, 1, 0], [2, -1, -1]]
    # Row 0: label 0 has .75 * .6, label 1 .75 * .4 + .25 * .5, label 3 .25 * .5.
    mixed = rank_mixed(candidates, [0.75, 0.25], top_k=4)
    assert mixed.tolist() == [[0, 1, 3, -1], [2, -1, -1, -1]]
    assert rank_mixed(candidates, [0.25, 0.75], top_k=2).tolist() == [[1, 3], [2, -1]]


def test_equal_scores_are_in_order_of_label_id() -> None:
    one = ranked([(0, 0.5), (3, 0.5)])
    candidates = union_of([one, one], normalization="best", order=ORDER)
    assert rank_mixed(candidates, [0.5, 0.5], top_k=2).tolist() == [[3, 0]]


def test_a_memory_without_weight_adds_no_candidate() -> None:
    candidates = union_of(
        [ranked([(0, 1.0)]), ranked([(1, 1.0)])], normalization="rank", order=ORDER
    )
    assert rank_mixed(candidates, [1.0, 0.0], top_k=3).tolist() == [[0, -1, -1]]


@given(seed=st.integers(0, 10_000), name=st.sampled_from(sorted(NORMALIZATIONS)))
def test_against_a_slow_mix(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    labels, k, order = 7, 4, LabelOrder.of([str(label) for label in range(7)])

    def drawn() -> RankedLabels:
        rows = []
        for _ in range(3):
            count = int(rng.integers(0, k + 1))
            scores = np.sort(rng.random(count))[::-1]
            rows.append(list(zip(rng.permutation(labels)[:count].tolist(), scores, strict=True)))
        return ranked(*rows, k=k)

    rankings, weights = [drawn(), drawn()], rng.dirichlet([1.0, 1.0])
    mixed = rank_mixed(
        union_of(rankings, normalization=name, order=order), weights.tolist(), top_k=labels
    )
    for row in range(3):
        totals: dict[int, float] = {}
        for weight, one in zip(weights, rankings, strict=True):
            normal = NORMALIZATIONS[name](one.scores)
            for label, score in zip(one.labels[row].tolist(), normal[row], strict=True):
                if label >= 0:
                    totals[label] = totals.get(label, 0.0) + weight * score
        expected = sorted(totals, key=lambda label: -totals[label])
        assert [label for label in mixed[row].tolist() if label >= 0] == expected
