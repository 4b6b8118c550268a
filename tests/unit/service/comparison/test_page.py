"""The page shows all differences, escapes the data's texts, and loads no other file."""

from html.parser import HTMLParser
from pathlib import Path

from service.comparison.comparison import SHOWN, Comparison, compare
from service.comparison.page import page, summary
from service.http.answers import KeywordAnswer
from tests.support.browser import layout

EVIL = '<script src="https://example.org/x.js">alert("1")</script>'


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
