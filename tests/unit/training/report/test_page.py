"""The page: whole in itself, escaped, and without what there is nothing to say of."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from training.report import page as page_module
from training.report.facts import choice, facts_of, listed
from training.report.page import p_value, render, section_of, sections_of


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
    assert sum(place.startswith("data:") for place in elements.loaded) == 2 * 2 * 6
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
