"""The page is self-contained and escaped, and has no empty sections; its plots are reproducible."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import layout
from training.evaluation.examples import (
    AgainstUntrained,
    ExampleQuery,
    Examples,
    ShownAnswer,
)
from training.lab.report import page as page_module
from training.lab.report.page import LONGEST_TEXT, WORDS, choice, plane, render, section_of
from training.lab.report.tables import METRICS


@pytest.fixture(autouse=True)
def _no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the plots, which take time and have tests of their own."""
    monkeypatch.setattr(page_module, "plane", lambda runs: b"a picture")


PNG = b"\x89PNG\r\n\x1a\n"
LOADING = ("src", "srcset", "href", "data", "poster", "action", "background")


class Elements(HTMLParser):
    """Collects a page's tags in order, the addresses that they load, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        self.loaded += [value for name, value in attributes if name in LOADING]

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(*runs: Any) -> str:
    return render([section_of(runs)])


def words_of(page: str) -> str:
    return " ".join(Elements(page).text.split())


def titles(page: str) -> list[str]:
    return [re.sub("&#39;", "'", title) for title in re.findall(r"<h3>(.*?)</h3>", page)]


def test_nothing_is_loaded_from_elsewhere_and_names_are_escaped(run: Any) -> None:
    bad = '<script>alert("1")</script>'
    first = run(bad, dataset=bad, system=bad, settings={bad: bad}, hardware={"device": bad})
    page = render(
        [section_of([first, run("other", dataset=bad)]), section_of([run(dataset="moby")])]
    )
    elements = Elements(page)
    assert bad in elements.text
    assert [place.split(",")[0] for place in elements.loaded] == ["data:image/png;base64"]
    assert not {"script", "link", "iframe", "object", "base"} & set(elements.tags)
    assert not [way for way in ("url(", "@import", "http://", "https://") if way in page]


def test_all_that_there_is_and_nothing_empty(run: Any, peer: Any) -> None:
    page = page_of(run(), peer)
    assert titles(page) == [
        "What was measured",
        "Metrics",
        "Instances against labels: λ",
        "How many keys are retrieved: b",
        "Frequent and rare labels",
        "One search or two",
        "Chance or not",
        "The RAE-XMC paper's orderings, checked here",
        "Frequent and rare keywords together: P@1 against PSP@5",
    ]
    text = words_of(page)
    assert "4 test rows, the same for every system" in text
    assert "A = 0.55, B = 1.5" in text
    assert "No choice was made on test rows" in text
    assert "raeraeλ 0.5 and b 200, chosen on 1,000 held-out training rows" in text
    assert "does not hold in 1 of 3" in text
    page = page_of(peer)
    assert titles(page) == ["What was measured", "Metrics", "Frequent and rare labels"]
    assert "<img" not in page


def test_where_choices_come_from(run: Any, peer: Any) -> None:
    none_held_out = run(held_out_rows=0)
    assert choice(none_held_out) == "λ 0.5 and b 200 as they were given; no rows were held out"
    assert choice(run(settings={}, held_out_rows=0)).endswith(
        "as they were given; nothing was chosen"
    )
    assert choice(peer) == "its settings as they were given; no rows were held out"


def test_unlike_hardware_is_said(run: Any, peer: Any) -> None:
    text = words_of(page_of(run(), run("gpu", hardware={"device": "a GPU", "processes": 8}), peer))
    assert "a processor" in text and "8 times a GPU" in text and "unlike hardware" in text
    assert "unlike hardware" not in words_of(page_of(run(), peer))


def test_the_glossary_comes_first_and_explains_each_metric(run: Any) -> None:
    text = words_of(page_of(run()))
    assert set(", ".join(WORDS).split(", ")) >= {*METRICS, "F1@5"}
    head, glossary, rest = text.partition("".join(f"{name}{of}" for name, of in WORDS.items()))
    assert glossary and "colours" in rest
    assert not [metric for metric in METRICS if metric in head.partition("</style>")[2]]


def judged(run: Any, *, query: str = "warm hat", text: str = "hats") -> Any:
    """Return a run with one won and one lost query."""
    right = (ShownAnswer(text=text, score=0.75, right=True),)
    wrong = (ShownAnswer(text="tents", score=0.25, right=False),)
    queries = tuple(
        ExampleQuery(
            query=query,
            expected=(text,),
            more=3,
            answers=right if verdict == "won" else wrong,
            untrained=wrong if verdict == "won" else right,
            verdict=verdict,
        )
        for verdict in ("won", "lost")
    )
    against = AgainstUntrained(
        encoder="base", memorization=0.3, depth=100, tau=0.04, won=1_200, lost=34, same=5
    )
    return replace(run(), examples=Examples(seed=7, queries=queries, against=against))


def test_queries_to_judge_by(run: Any) -> None:
    page = page_of(judged(run), run("plain"))
    text = words_of(page)
    assert [title for title in titles(page) if "judge" in title] == ["Queries to judge by: rae"]
    assert (
        "Of 1,239 test queries, 1,200 won, 34 lost, 5 the same, against the untrained memory"
        " of base (λ 0.3, b 100, temperature 0.04)."
    ) in text
    assert "2 test queries drawn by seed 7" in text
    assert "warm hathats and 3 morehats 0.750 ✓ righttents 0.250won" in text
    assert "warm hathats and 3 moretents 0.250hats 0.750 ✓ rightlost" in text
    queries = tuple(
        replace(query, untrained=None, verdict=None) for query in judged(run).examples.queries
    )
    text = words_of(page_of(replace(run(), examples=Examples(seed=0, queries=queries))))
    assert "The untrained memory was not measured" in text
    assert "against it" not in text and "hats 0.750 ✓ right" in text


@pytest.mark.parametrize("width", [390, 1_280])
def test_a_browser_shows_every_column_whole(
    run: Any, peer: Any, tmp_path: Path, width: int
) -> None:
    """On a narrow phone and on a desktop screen."""
    runs = [run(), judged(run), run("renee"), peer]
    page = render([section_of(runs), section_of([run(dataset="moby")])])
    shown = layout(page, width=width, folder=tmp_path)
    assert shown.needed <= shown.width
    assert shown.broken == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("</li><script>alert(1)</script>", "</li><script>alert(1)</script>"),
        ("x" * 100_000, "x" * LONGEST_TEXT + "…"),
        ("日本語 שלום 👩‍👩‍👧 é", "日本語 שלום 👩‍👩‍👧 é"),
        ("a\0b\x1b[31m\x85", "a\ufffdb\ufffd[31m\ufffd"),
        ("half \ud800 of a pair", "half \ufffd of a pair"),
        ("\u202eright to left", "\u202eright to left"),
        ("{{ run }} {% raw %}", "{{ run }} {% raw %}"),
        ("**bold**", "**bold**"),
    ],
)
def test_no_text_breaks_the_page(text: str, shown: str, run: Any) -> None:
    page = page_of(judged(run, query=text, text=text))
    elements = Elements(page)
    assert page.encode()
    assert "script" not in elements.tags
    assert elements.text.count(shown) >= 6
    assert len(page) < len(page_of(judged(run))) + 5_000


def test_any_names_can_be_drawn_and_the_picture_is_the_same_each_time(run: Any, peer: Any) -> None:
    runs = [*map(run, ("_hidden", "$x_$ {", "a" * 200, "<b>&", "")), peer]
    picture = plane(runs)
    assert picture.startswith(PNG)
    assert plane(runs) == picture
