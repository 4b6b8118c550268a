"""The page: whole in itself, escaped, and without what there is nothing to say of."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from training.evaluation.examples import (
    AgainstUntrained,
    ExampleQuery,
    Examples,
    ShownAnswer,
)
from training.report import page as page_module
from training.report.facts import choice, facts_of, listed
from training.report.page import LONGEST_TEXT, render, section_of, sections_of
from training.report.significance import p_value
from training.report.tables import METRICS


@pytest.fixture(autouse=True)
def _no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are tested where they are drawn; here they only take time."""
    monkeypatch.setattr(page_module, "draw", lambda panel, theme: b"a picture")


LOADING = ("src", "srcset", "href", "data", "poster", "action", "background")


class Elements(HTMLParser):
    """Tags in their order, what they would load, and all text."""

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


def headings(page: str) -> list[str]:
    return [
        re.sub(r"<[^>]*>", "", heading).split(" (")[0].strip()
        for heading in re.findall(r"<h3>(.*?)</h3>", page)
    ]


def test_nothing_is_loaded_from_elsewhere(run: Any, peer: Any) -> None:
    page = render(sections_of({"colours": [run(), peer], "moby": [run(dataset="moby")]}))
    elements = Elements(page)
    assert all(place.startswith(("data:image/png;base64,", "#")) for place in elements.loaded)
    assert sum(place.startswith("data:") for place in elements.loaded) == 2 * (2 * 6 + 2)
    assert not {"script", "link", "iframe", "object", "base"} & set(elements.tags)
    assert "url(" not in page
    assert "@import" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_names_are_escaped(run: Any) -> None:
    bad = '<script>alert("1")</script>'
    page = render(
        sections_of(
            {
                bad: [
                    run(bad, dataset=bad, system=bad, settings={bad: bad}, hardware={bad: [bad]}),
                    run("other", dataset=bad),
                ]
            }
        )
    )
    elements = Elements(page)
    assert "script" not in elements.tags
    assert bad in elements.text


def test_all_that_there_is(run: Any, peer: Any) -> None:
    page = render(sections_of({"colours": [run(), peer]}))
    assert headings(page) == [
        "What was measured",
        "Metrics",
        "Frequent and rare keywords together: P@1 against PSP",
        "Instances against labels: λ",
        "How many keys are retrieved: b",
        "Quality against training time",
        "Frequent and rare labels",
        "One search or two",
        "Chance or not",
        "The paper's orderings, checked here",
        "Settings and hardware",
    ]
    text = " ".join(Elements(page).text.split())
    assert "4 test rows, the same for every system" in text
    assert "A = 0.55, B = 1.5" in text
    assert "No choice was made on test rows" in text
    assert "rae: λ 0.5 and b 200, chosen on 1,000 held-out training rows." in text
    assert "does not hold in 1 of 3" in text


def test_a_section_without_anything_is_left_out(peer: Any) -> None:
    page = render(sections_of({"colours": [peer]}))
    assert headings(page) == [
        "What was measured",
        "Metrics",
        "Frequent and rare labels",
        "Settings and hardware",
    ]
    assert "<img" not in page


def test_data_sets_have_anchors_of_their_own(run: Any) -> None:
    names = ["LF-Amazon 1.3M", "lf amazon 1 3m", "…"]
    sections = sections_of({name: [run(dataset=name)] for name in names})
    assert [section.anchor for section in sections] == [
        "lf-amazon-1-3m",
        "lf-amazon-1-3m-2",
        "data",
    ]
    files = [picture.name for section in sections for picture in section.pictures]
    assert files[0] == "lf-amazon-1-3m-lambda-P1"
    assert len(set(files)) == len(files)


def test_pictures_say_what_they_show(run: Any) -> None:
    picture = section_of([run()], anchor="x").depth_pictures[0]
    assert picture.alternative == "P@1 by b: P@1, percent against b, retrieved keys a query; rae"


@pytest.mark.parametrize(
    ("p", "shown"),
    [
        (None, "none"),
        (0.0, "≈ 0"),
        (0.514, "0.51"),
        (0.01, "0.01"),
        (0.0045, "0.0045"),
        (2.53e-42, "2.5e-42"),
    ],
)
def test_p_values(p: float | None, shown: str) -> None:
    assert p_value(p) == shown


def test_where_choices_come_from(run: Any, peer: Any) -> None:
    assert choice(run()) == "λ 0.5 and b 200, chosen on 1,000 held-out training rows"
    none_held_out = run(held_out_rows=0)
    assert choice(none_held_out) == "λ 0.5 and b 200 as they were given; no rows were held out"
    assert choice(run(settings={}, held_out_rows=0)).endswith(
        "as they were given; nothing was chosen"
    )
    assert choice(peer) == "its settings as they were given; no rows were held out"


def test_unlike_hardware_is_said(run: Any, peer: Any) -> None:
    runs = [run(), run("gpu", hardware={"device": "a GPU", "processes": 8}), peer]
    facts = facts_of(runs)
    assert facts.devices == ("a processor", "8 times a GPU")
    assert "unlike hardware" in render(sections_of({"colours": runs}))


def test_settings_are_listed_flat() -> None:
    settings = {"seed": 0, "batch": {"order": "shuffled", "cap": None}, "of": [1, 2]}
    assert list(listed(settings)) == [("seed", "0"), ("batch.order", "shuffled"), ("of", "1, 2")]


def test_a_plain_sentence_stands_before_each_name(run: Any) -> None:
    text = " ".join(Elements(render(sections_of({"colours": [run()]}))).text.split())
    for metric in (*METRICS, "F1@5"):
        assert text.index("Of a hundred queries, how many have a right") < text.index(metric)
    words = page_module.WORDS
    assert {name for word in words for name in word.names} >= {*METRICS, "F1@5"}
    for word in words:
        for name in word.names:
            if "@" in name:
                assert text.index(word.meaning) < re.search(rf"{name}(?!\d)", text).start()


def judged(run: Any, *, query: str = "warm hat", text: str = "hats") -> Any:
    """A run with a won and a lost query."""
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
    page = render(sections_of({"colours": [judged(run), run("plain")]}))
    text = " ".join(Elements(page).text.split())
    assert "Queries to judge by" in headings(page)
    assert (
        "rae: of 1,239 test queries, 1,200 won, 34 lost, 5 the same, against the untrained memory"
        " of base (λ 0.3, b 100, temperature 0.04)."
    ) in text
    assert "rae: 2 queries drawn by seed 7" in text
    assert "warm hat hats and 3 more hats 0.750 ✓ right tents 0.250 won" in text
    assert "warm hat hats and 3 more tents 0.250 hats 0.750 ✓ right lost" in text
    assert "plain: of" not in text


def test_queries_without_the_untrained_memory(run: Any) -> None:
    queries = tuple(
        replace(query, untrained=None, verdict=None) for query in judged(run).examples.queries
    )
    one = replace(run(), examples=Examples(seed=0, queries=queries))
    text = " ".join(Elements(render(sections_of({"colours": [one]}))).text.split())
    assert "rae: the untrained memory was not measured" in text
    assert "against it" not in text and "hats 0.750 ✓ right" in text


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
    ],
)
def test_no_text_breaks_the_page(text: str, shown: str, run: Any) -> None:
    page = render(sections_of({"colours": [judged(run, query=text, text=text)]}))
    elements = Elements(page)
    assert page.encode()
    assert "script" not in elements.tags
    assert elements.text.count(shown) >= 6
    assert elements.tags.count("bdi") == 8  # each text keeps its direction to itself
    assert len(page) < len(render(sections_of({"colours": [judged(run)]}))) + 5_000
