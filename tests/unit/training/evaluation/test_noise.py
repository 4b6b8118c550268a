"""Noise changes a query in one way, equally in every run, and its cost in P@1 is measured."""

from random import Random

import pytest
from rapidfuzz.distance import OSA

from training.evaluation.noise import KINDS, noisy

QUERY = "red trail shoes"


def changed(kind: str, query: str = QUERY, times: int = 50) -> list[str]:
    found = [noisy(kind, query, Random(seed)) for seed in range(times)]
    return [query for query in found if query is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_noise_depends_on_the_seed_alone(kind: str) -> None:
    assert changed(kind) == changed(kind)
    assert QUERY not in changed(kind)
    assert len(changed(kind)) > 40


@pytest.mark.parametrize(("kind", "most"), [("typo", 1), ("two typos", 2)])
def test_typos_are_edits_of_long_words(kind: str, most: int) -> None:
    for query in changed(kind):
        assert query.startswith("red ")
        assert 1 <= OSA.distance(query, QUERY) <= most
    lengths = {len(query) - len(QUERY) for query in changed(kind)}
    assert {-1, 0, 1} <= lengths


def test_words_are_split_and_joined() -> None:
    for query in changed("split"):
        assert query.replace(" ", "") == QUERY.replace(" ", "")
        assert query.count(" ") == 3
    assert set(changed("joined")) == {"redtrail shoes", "red trailshoes"}


def test_other_kinds() -> None:
    assert set(changed("plural")) == {"red trail shoe"}
    assert set(changed("plural", "red shoe")) == {"red shoes"}
    assert set(changed("case")) == {"RED TRAIL SHOES"}
    assert {"réd trail shoes", "red tráil shoes"} < set(changed("accents"))
    assert {query.partition(" ")[2] for query in changed("added")} == {QUERY}


def test_a_query_that_cannot_be_changed_is_left_out() -> None:
    for kind, query in (
        ("typo", "a 12345"),
        ("two typos", "abc"),
        ("plural", "7"),
        ("plural", ""),
        ("split", "tea"),
        ("joined", "tent"),
        ("case", "ABC 1"),
        ("accents", "xyz"),
    ):
        assert changed(kind, query) == []
