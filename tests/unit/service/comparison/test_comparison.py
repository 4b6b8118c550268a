"""Bundles are compared: queries and known labels of a table, measures, and the page.

Measures equal hand-computed examples. The page escapes the data's texts, and loads no other file.
"""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.comparison.comparison import (
    SHOWN,
    SLICES,
    Clicks,
    Comparison,
    KnownAnswers,
    KnownLabels,
    Slice,
    SliceValues,
    compare,
    field_values,
    holm,
    metrics_of,
    overlaps,
    paired_test,
    precision,
    rank_changes,
    read_clicks,
    read_queries,
    read_slices,
    recall,
)
from service.comparison.page import as_json, page, summary
from service.core.bundle.label_details import Details, dump
from service.core.errors import InvalidConfig, InvalidData
from service.core.prediction.answers import KeywordAnswer
from service.settings import Limits
from tests.support.browser import layout
from tests.support.tiny.bundles import LABELS

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
    path = tmp_path / "t.txt"
    path.write_text("rope\n")
    with pytest.raises(InvalidData, match="has one column, and 2 are wanted; give a table"):
        read(path, "a", query=None)


def slices(path: Path, *columns: str) -> dict[str, SliceValues]:
    return read_slices(path, query="q", columns=columns, limits=Limits())


def test_values_of_queries_by_column(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        {"q": "rope", "kind": "gear", "new": True, "tags": ["a", " b\n c "]},
        {"q": "tent", "kind": " ", "new": 0.5, "tags": None},
        {"q": "rope", "kind": "sale", "new": True, "tags": [7, "a"]},
    ]
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    assert slices(path, "kind", "new", "tags") == {
        "kind": {"rope": ("gear", "sale"), "tent": ()},
        "new": {"rope": ("true",), "tent": ("0.5",)},
        "tags": {"rope": ("a", "b c", "7"), "tent": ()},
    }
    assert slices(path) == {}
    path.write_text('{"q": "rope", "kind": {"a": 1}}\n')
    with pytest.raises(InvalidData, match=r":1: kind: a value of a slice must be a text, a number"):
        slices(path, "kind")
    with pytest.raises(InvalidData, match="shop: there is no such column"):
        slices(path, "shop")


def test_values_of_labels_by_field(make_bundle: Callable[..., Path]) -> None:
    # The labels are boots, bottle, lamp, shoes, stove and tent.
    old = [{"brand": "acme"}, {"brand": ["apex", "acme"], "price": 5}, {"brand": "zen"}]
    new = [{}, {"brand": "apex", "price": 5.5}, {"price": 7}]
    bundles = [
        make_bundle(label_details=[dump(Details(metadata=one)) for one in of] + [""] * 3, name=name)
        for name, of in (("old", old), ("new", new))
    ]
    known: KnownLabels = {"warm": (LABELS["boots"], LABELS["tent"])}
    assert field_values(bundles, ["brand", "price"], known) == {
        "brand": {
            "boots": ("acme",),  # of the first bundle: the last one has none
            LABELS["boots"]: ("acme",),
            "bottle": ("apex",),
            "lamp": ("zen",),
        },
        "price": {"bottle": ("5.5",), "lamp": ("7",)},
    }
    assert field_values(bundles, [], known) == {}
    with pytest.raises(
        InvalidConfig, match="has the field 'color'; the labels' fields are: 'brand'"
    ):
        field_values(bundles, ["brand", "color"], known)


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


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


# Slices ---------------------------------------------------------------------------------------


def test_a_slice_that_loses_while_the_whole_gains() -> None:
    """B is right for all of 40 lamps and for none of 20 ropes, A the other way round."""
    kinds = {f"{kind} {n}": (kind,) for kind, count in (("lamp", 40), ("rope", 20))
             for n in range(count)}  # fmt: skip
    left = {query: ranking("ax" if kind == ("rope",) else "xa") for query, kind in kinds.items()}
    right = {query: ranking("ax" if kind == ("lamp",) else "xa") for query, kind in kinds.items()}
    found = compare(
        ("A", "B"), left, right, dict.fromkeys(left, ("a",)), k=5, slices={"kind": kinds}
    )
    assert found.quality["P@1"].difference > 0
    lamps, ropes = found.slices["kind"]
    assert (lamps.value, lamps.agreement.queries, lamps.judged) == ("lamp", 40, 40)
    assert (ropes.value, ropes.agreement.queries, ropes.judged) == ("rope", 20, 20)
    assert (lamps.quality["P@1"].difference, ropes.quality["P@1"].difference) == (1.0, -1.0)
    assert ropes.quality["P@1"].p == pytest.approx(2 / 10_001)  # twice, for two slices
    *_, title, of_lamps, of_ropes = summary(found)
    assert title == "queries by kind: 2 values"
    assert of_lamps.startswith("  lamp: 40 queries; overlap@5 100.0%; P@1: A 0.0%, B 100.0%; P@5")
    assert of_lamps.endswith(": B is better (P@1)")
    assert of_ropes.endswith(": A is better (P@1)")
    assert '<th>rope<span class="soft">A is better (P@1)</span>' in page(found)


def test_every_query_is_in_a_slice() -> None:
    """The values with most queries come first, then the other values together, then no value."""
    values: dict[str, tuple[str, ...]] = {
        f"{value} {n}": (f"v{value}",) for value in range(SLICES + 3) for n in range(1 + value)
    }
    values |= {"none": (), "two": ("v0", "v1"), "three": ("v0", "v9")}
    same = dict.fromkeys(values, ranking("ab"))
    found = compare(("A", "B"), same, same, dict.fromkeys(same, ()), k=5, slices={"v": values})
    shown = found.slices["v"]
    assert [one.value for one in shown[:2]] == ["v22", "v21"]
    assert [one.value for one in shown[SLICES:]] == [None, None]
    others, none = shown[SLICES:]
    assert (others.others, others.agreement.queries) == (3, 1 + 2 + 3 + 2)  # two and three once
    assert (none.others, none.agreement.queries) == (0, 1)
    lines = list(summary(found))
    assert f"queries by v: 23 values; the {SLICES} with most queries, and the others" in lines[3]
    assert [line.split(":")[0].strip() for line in lines[-2:]] == [
        "(3 other values)",
        "(no value)",
    ]
    ids = {query: (query,) for query in values}
    found = compare(("A", "B"), same, same, dict.fromkeys(same, ()), k=5, slices={"id": ids})
    assert "name one that has fewer values)" in page(found)


def test_labels_of_a_value_gain_and_lose() -> None:
    brands = {"a": ("acme",), "b": ("acme", "apex"), "c": ("apex",)}
    left = {"one": ranking("abx"), "two": ranking("c")}
    right = {"one": ranking("bca"), "two": ranking("x")}
    known = {"one": ("a", "c"), "two": ("c",)}
    found = compare(("A", "B"), left, right, known, k=5, label_slices={"brand": brands})
    apex, acme, none = found.label_slices["brand"]

    def figures(one: Slice) -> tuple[object, ...]:
        agreement = one.agreement
        return (one.value, agreement.queries, agreement.keywords, agreement.gone, agreement.new)

    assert figures(apex) == ("apex", 2, (2, 2), 1, 1)  # b and c, then b and c
    assert figures(acme) == ("acme", 1, (2, 2), 0, 0)
    assert figures(none) == (None, 2, (1, 1), 1, 1)
    assert (apex.judged, acme.judged, none.judged) == (2, 1, 0)
    assert list(apex.quality) == ["R@5"]
    assert (apex.quality["R@5"].left, apex.quality["R@5"].right) == (0.5, 0.5)
    assert list(summary(found))[-3].startswith("  apex: 2 queries, keywords: A 2, B 2; overlap@5")
    document = orjson.loads(as_json(found))
    assert document["label_slices"]["brand"][0]["agreement"]["keywords"] == [2, 2]
    assert document["changed"][1]["known"] == ["a", "c"]


# The page -------------------------------------------------------------------------------------


def keywords(*texts: str) -> list[KeywordAnswer]:
    return [{"id": text, "text": text, "score": 0.0, "novel": False} for text in texts]


def compared(*, labels: bool = True) -> Comparison:
    left = {f"query {n}": keywords("a", "b", "c") for n in range(30)}
    right = {f"query {n}": keywords("a", "c", "b") if n % 2 else keywords("a", "b", "c")
             for n in range(30)}  # fmt: skip
    left[EVIL], right[EVIL] = keywords("a", EVIL), keywords(EVIL, "d")
    known = dict.fromkeys(left, ("a", EVIL) if labels else ())
    columns = {EVIL: {query: (EVIL,) if query == EVIL else ("odd",) for query in left}}
    fields = {EVIL: {"a": (EVIL,), EVIL: ("\x1b[31mred",)}}
    return compare((EVIL, "B & Co"), left, right, known, k=5, slices=columns, label_slices=fields)


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
    assert list(summary(comparison))[2].startswith("quality: no labels are known")
    assert not any("\x1b" in line for line in summary(comparison))
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


def test_a_query_that_only_one_memory_has_is_not_judged() -> None:
    """B seems better on "own" only because its memory has the very row."""
    left = {"own": ranking("ba"), "new": ranking("ab"), "both": ranking("ba")}
    right = {"own": ranking("ab"), "new": ranking("ab"), "both": ranking("ab")}
    known = dict.fromkeys(left, ("a",))
    clicks = {"own": {"a": 9.0}, "both": {"a": 70.0, "b": 30.0}}
    compared = compare(
        ("A", "B"), left, right, known, k=10, rows=({"both"}, {"both", "own"}), clicks=clicks
    )
    assert compared.judged == 2
    assert (compared.quality["P@1"].left, compared.quality["P@1"].right) == (0.5, 1.0)
    memories = compared.memories
    assert (memories.left, memories.right, memories.both, memories.one_sided) == (1, 2, 1, 1)
    assert memories.known == (
        KnownAnswers(first=0.0, in_ten=1.0),
        KnownAnswers(first=1.0, in_ten=1.0),
    )
    said = "\n".join(summary(compared))
    assert "the 1 queries that only one memory has are not judged" in said
    assert (
        "known queries (1 of both memories, 100 clicks): the most clicked keyword is first for"
        in said
    )
    assert "A 0.0%, B 100.0% of the clicks (+100.00 points)" in said
    assert "are not judged" in page(compared)
    one_sided = compare(("A", "B"), left, right, known, k=10, rows=(set(), set(left)))
    assert not one_sided.quality
    assert "quality: no query with known labels is left" in summary(one_sided)


def test_weights_of_a_column_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("q,label,n\na,x,3\na,y,1\n a ,x,2.5\nb,,4\n")

    def read(weight: str | None) -> Clicks:
        return read_clicks(path, query="q", labels=["label"], weight=weight, limits=Limits())

    assert read("n") == {"a": {"x": 5.5, "y": 1.0}}
    assert read(None) == {"a": {"x": 2.0, "y": 1.0}}
    path.write_text("q,label,n\na,x,3\na,y,often\n")
    with pytest.raises(InvalidData, match=r"clicks\.csv:3: n: is not a positive number"):
        read("n")
