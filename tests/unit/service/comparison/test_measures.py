"""Agreement and quality of rankings, by examples computed by hand."""

import numpy as np
import pytest

from service.comparison.measures import (
    metrics_of,
    overlaps,
    paired_test,
    precision,
    rank_changes,
    recall,
)
from service.core.types import Keyword


def ranking(ids: str) -> list[Keyword]:
    """A keyword for each letter; its text is the letter in upper case."""
    return [Keyword(id=letter, text=letter.upper(), score=0.0, novel=False) for letter in ids]


@pytest.mark.parametrize(
    ("left", "right", "shares"),
    [
        ("abcd", "abcd", [1, 1, 1, 1]),
        ("abcd", "bacd", [0, 1, 1, 1]),
        ("abcd", "xayz", [0, 1 / 2, 1 / 3, 1 / 4]),
        ("ab", "ba", [0, 1, 1, 1]),
        ("ab", "", [0, 0, 0, 0]),
        ("", "", [1, 1, 1, 1]),
    ],
)
def test_overlap_at_each_depth(left: str, right: str, shares: list[float]) -> None:
    assert overlaps(ranking(left), ranking(right), 4) == pytest.approx(shares)
    assert overlaps(ranking(right), ranking(left), 4) == pytest.approx(shares)


def test_rank_changes_of_labels_that_both_have() -> None:
    assert rank_changes(ranking("abcd"), ranking("dabx")) == {"d": 3, "a": -1, "b": -1}


def test_known_labels_are_ids_or_texts() -> None:
    found = ranking("abcde")
    assert precision(found, {"b", "C", "z"}, 1) == 0.0
    assert precision(found, {"b", "C", "z"}, 5) == pytest.approx(2 / 5)
    assert recall(found, {"b", "C", "z"}, 5) == pytest.approx(2 / 3)
    assert recall(found, {"b", "C", "z"}, 2) == pytest.approx(1 / 3)


def test_queries_without_known_labels_are_not_judged() -> None:
    rankings = {"one": ranking("ab"), "two": ranking("ba")}
    metrics = metrics_of(rankings, {"one": (), "two": ("b",)}, 10)
    assert {name: values.tolist() for name, values in metrics.items()} == {
        "P@1": [1.0],
        "P@5": [0.2],
        "R@10": [1.0],
    }


def test_the_paired_test_against_all_signs() -> None:
    # Of the 2^6 signs of six equal differences, two give a mean as large: p = 2 / 64.
    test = paired_test(np.zeros(6), np.ones(6))
    assert test.p == pytest.approx(2 / 64, abs=0.005)
    assert (test.wins, test.losses, test.ties) == (6, 0, 0)
    assert (test.difference, test.low, test.high) == (1.0, 1.0, 1.0)


def test_equal_sides_do_not_differ() -> None:
    test = paired_test(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    assert (test.p, test.difference, test.ties) == (1.0, 0.0, 2)


def test_chance_is_told_from_a_difference() -> None:
    generator = np.random.default_rng(1)
    left = generator.integers(0, 2, 2_000).astype(float)
    noise = generator.integers(0, 2, 2_000).astype(float)
    better = np.maximum(left, generator.random(2_000) < 0.05)
    assert paired_test(left, noise).p > 0.05
    difference = paired_test(left, better)
    assert difference.p < 0.001
    assert 0 < difference.low < difference.difference < difference.high
