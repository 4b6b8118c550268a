"""Bundles are compared: queries and known labels of a table, measures, and the page.

Measures equal hand-computed examples. The page escapes the data's texts, and loads no other file.
"""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.comparison.comparison import (
    SHOWN,
    Comparison,
    KnownLabels,
    compare,
    metrics_of,
    overlaps,
    paired_test,
    precision,
    rank_changes,
    read_queries,
    recall,
)
from service.comparison.page import page, summary
from service.core.errors import InvalidConfig, InvalidData
from service.http.answers import KeywordAnswer
from service.settings import Limits
from tests.support.browser import layout

EVIL = '<script src="https://example.org/x.js">alert("1")</script>'


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
    """Return one keyword per letter of `ids`: the letter is its id, the capital letter its text."""
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


# The page -------------------------------------------------------------------------------------


def keywords(*texts: str) -> list[KeywordAnswer]:
    return [{"id": text, "text": text, "score": 0.0, "novel": False} for text in texts]


def compared(*, labels: bool = True) -> Comparison:
    left = {f"query {n}": keywords("a", "b", "c") for n in range(30)}
    right = {f"query {n}": keywords("a", "c", "b") if n % 2 else keywords("a", "b", "c")
             for n in range(30)}  # fmt: skip
    left[EVIL], right[EVIL] = keywords("a", EVIL), keywords(EVIL, "d")
    known = dict.fromkeys(left, ("a", EVIL) if labels else ())
    return compare((EVIL, "B & Co"), left, right, known, k=5)


class Tags(HTMLParser):
    """Collects the elements of a page and checks that they are nested."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {name for name, _ in attrs} & {"src", "href", "onload"}
        self.seen.append(tag)
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def tags_of(html: str) -> list[str]:
    parser = Tags()
    parser.feed(html)
    return parser.seen


def test_agreement_and_the_queries_that_change_most() -> None:
    comparison = compared()
    agreement = comparison.agreement
    assert (agreement.queries, agreement.unchanged) == (31, 15)
    assert (agreement.new, agreement.gone) == (1, 1)
    assert (agreement.up, agreement.down) == (16, 15)
    assert agreement.overlaps[1] == 30 / 31
    assert comparison.changed[0].query == EVIL
    assert [changed.query for changed in comparison.changed[1:3]] == ["query 1", "query 3"]
    assert len(comparison.changed) == 16 < SHOWN


def test_the_page_is_whole_and_harmless() -> None:
    html = page(compared())
    tags = tags_of(html)
    assert "script" not in tags
    assert tags.count("h3") == 16
    for shown in (
        "prefers-color-scheme: dark",
        "randomisation test",
        '<span class="good">↑1</span>',
        'class="known"',
        # The verdict is in the column's heading, visible without scrolling on narrow screens.
        '<th>P@1<span class="soft">may be chance</span></th>',
    ):
        assert shown in html


def test_a_phone_shows_every_column_whole(tmp_path: Path) -> None:
    shown = layout(page(compared()), width=390, folder=tmp_path)
    assert shown.needed <= shown.width
    assert shown.broken == []
    assert "lists" not in shown.scrolled


def test_unknown_quality_and_equal_answers_are_said() -> None:
    comparison = compared(labels=False)
    assert "nothing is said about quality" in page(comparison)
    assert list(summary(comparison))[-1].startswith("quality: no labels are known")
    same = {"rope": keywords("a")}
    comparison = compare(("A", "B"), same, same, {"rope": ("a",)}, k=5)
    assert "Every query has the same keywords" in page(comparison)
    first, second, *quality = summary(comparison)
    assert first == "A A, B B: 1 queries"
    assert second == "overlap @1 100.0%, @5 100.0%; 1 queries unchanged"
    assert "difference +0.00 points, p = 1.0000; B wins 0, loses 0" in quality[0]
    assert quality[0].endswith(": may be chance")


def test_confidences_are_compared_with_known_labels() -> None:
    sure, other = keywords("a", "b", "rope"), keywords("a", "b")
    for keyword, confidence in zip(sure, (0.95, 0.05, 0.05), strict=True):
        keyword["confidence"] = confidence
    rankings = {"rope": sure, "tent": sure}, {"rope": other, "tent": other}
    comparison = compare(("A", "B"), *rankings, {"rope": ("a",), "tent": ()}, k=5)
    found, none = comparison.reliability
    assert none is None
    assert found is not None
    assert found.queries == 1  # the other one has no known label
    assert [one.keywords for one in found.bins] == [1, 1]  # "rope" is the query itself
    assert found.error == pytest.approx(5.0)
    assert found.answered == {80: 100.0, 90: 100.0, 95: 100.0}
    lines = list(summary(comparison))
    assert lines[-1] == (
        "confidences of A: calibration error 5.0 points; answered with a precision of first"
        " keywords: 100.0 % at 80 %, 100.0 % at 90 %, 100.0 % at 95 %"
    )
    shown = page(comparison)
    assert "How far confidences can be believed" in shown
    assert "<th>A known</th>" in shown
    assert "<th>B known</th>" not in shown
