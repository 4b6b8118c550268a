"""Queries and known labels are read from a table; measures equal hand-computed examples."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from service.comparison.comparison import (
    KnownLabels,
    metrics_of,
    overlaps,
    paired_test,
    precision,
    rank_changes,
    read_queries,
    recall,
)
from service.core.errors import InvalidConfig, InvalidData
from service.http.answers import KeywordAnswer
from service.settings import Limits


def read(path: Path, *labels: str, query: str | None = "q") -> KnownLabels:
    return read_queries(path, query=query, labels=labels, limits=Limits())


def test_rows_of_a_query_add_up(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("q,a,b\n rope ,x,y\ntent,,\nrope,z,x\n")
    assert read(path, "a", "b") == {"rope": ("x", "y", "z"), "tent": ()}
    assert read(path, "b") == {"rope": ("y", "x"), "tent": ()}
    assert read(path) == {"rope": (), "tent": ()}


def test_lists_numbers_and_lines_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"q": "rope", "a": ["x", 7]}, {"q": "tent", "a": None}, {"q": "axe", "a": "y"}]
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    assert read(path, "a") == {"rope": ("x", "7"), "tent": (), "axe": ("y",)}
    path = tmp_path / "t.txt"
    path.write_text("rope\ntent\nrope\n")
    assert list(read(path, query=None)) == ["rope", "tent"]


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(InvalidConfig, match="name its column of queries by --query"):
        read(path, query=None)
    path.write_text('{"q": "rope", "a": 0.5}\n')
    with pytest.raises(InvalidData, match=r"t.jsonl:1: a: a label is no text but float"):
        read(path, "a")
    path.write_text('{"q": " ", "a": "x"}\n')
    with pytest.raises(InvalidData, match=r":1: q: the query is empty; correct or remove the row"):
        read(path, "a")
    path.write_text("")
    with pytest.raises(InvalidData, match="holds no query"):
        read(path, "a")


def ranking(ids: str) -> list[KeywordAnswer]:
    """Keywords whose ids are the letters of `ids` and whose texts are the upper-case letters."""
    return [{"id": each, "text": each.upper(), "score": 0.0, "novel": False} for each in ids]


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
    # Of the 2^6 ways to give six equal differences signs, two have so large a mean: p = 2 / 64.
    test = paired_test(np.zeros(6), np.ones(6))
    assert test.p == pytest.approx(2 / 64, abs=0.005)
    assert (test.wins, test.losses, test.ties) == (6, 0, 0)
    assert (test.difference, test.low, test.high) == (1.0, 1.0, 1.0)
    equal = paired_test(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    assert (equal.p, equal.difference, equal.ties) == (1.0, 0.0, 2)


def test_chance_is_told_from_a_difference() -> None:
    generator = np.random.default_rng(1)
    left = generator.integers(0, 2, 2_000).astype(float)
    noise = generator.integers(0, 2, 2_000).astype(float)
    better = np.maximum(left, generator.random(2_000) < 0.05)
    assert paired_test(left, noise).p > 0.05
    difference = paired_test(left, better)
    assert difference.p < 0.001
    assert 0 < difference.low < difference.difference < difference.high
