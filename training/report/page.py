"""The report's HTML page: a section for each data set, with its pictures embedded."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain
from pathlib import Path
from unicodedata import category

from jinja2 import Environment, StrictUndefined

from service.core.files.atomic import new_folder
from training.evaluation.answers import TOP
from training.report import facts, orderings, significance, tables
from training.report.facts import Facts
from training.report.orderings import Ordering
from training.report.panels import (
    Panel,
    depth_panels,
    memorization_panels,
    plane_panels,
    time_panels,
)
from training.report.plots import DARK, LIGHT, draw
from training.report.runs import Run
from training.report.seeds import seed_table
from training.report.significance import Comparison, p_value
from training.report.tables import Table
from training.report.words import WORDS

PAGE = "report.html"
LONGEST_TEXT = 240  # characters of a query or keyword


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A panel as PNG for light and for dark screens; `name` is the file name without .png."""

    name: str
    panel: Panel
    light: bytes
    dark: bytes

    @property
    def alternative(self) -> str:
        """The alternative text of the picture."""
        curves = ", ".join(curve.name for curve in self.panel.curves)
        return f"{self.panel.title}: {self.panel.y} against {self.panel.x}; {curves}"


@dataclass(frozen=True, kw_only=True)
class Card:
    """Settings and hardware of one run, as (name, value) lines."""

    name: str
    system: str
    settings: tuple[tuple[str, str], ...]
    hardware: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """The content of one data set's section; empty parts are left out of the page."""

    anchor: str
    facts: Facts
    metrics: Table
    seeds: Table
    plane_pictures: tuple[Picture, ...]
    memorizations: Table
    memorization_pictures: tuple[Picture, ...]
    depth_pictures: tuple[Picture, ...]
    time_pictures: tuple[Picture, ...]
    segments: Table
    predictions: Table
    best: Run
    comparisons: tuple[Comparison, ...]
    orderings: tuple[Ordering, ...]
    judged: tuple[Run, ...]  # the runs with examples
    cards: tuple[Card, ...]

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures of the section."""
        return (
            *self.plane_pictures,
            *self.memorization_pictures,
            *self.depth_pictures,
            *self.time_pictures,
        )


def sections_of(by_dataset: Mapping[str, Sequence[Run]]) -> list[Section]:
    """Build the section of each data set, in the given order."""
    anchors: list[str] = []
    for dataset in by_dataset:
        anchor = re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-") or "data"
        anchors.append(anchor if anchor not in anchors else f"{anchor}-{len(anchors) + 1}")
    return [
        section_of(runs, anchor=anchor)
        for anchor, runs in zip(anchors, by_dataset.values(), strict=True)
    ]


def section_of(runs: Sequence[Run], *, anchor: str) -> Section:
    """Build the section of one data set's runs; `anchor` also begins its files' names."""
    return Section(
        anchor=anchor,
        facts=facts.facts_of(runs),
        metrics=tables.metrics(runs),
        seeds=seed_table(runs),
        plane_pictures=pictures(anchor, plane_panels(runs)),
        memorizations=tables.memorizations(runs),
        memorization_pictures=pictures(anchor, memorization_panels(runs)),
        depth_pictures=pictures(anchor, depth_panels(runs)),
        time_pictures=pictures(anchor, time_panels(runs)),
        segments=tables.segments(runs),
        predictions=tables.predictions(runs),
        best=significance.best(runs),
        comparisons=tuple(significance.comparisons(runs)),
        orderings=tuple(orderings.orderings(runs)),
        judged=tuple(run for run in runs if run.examples is not None),
        cards=tuple(
            Card(
                name=run.name,
                system=run.results.system,
                settings=tuple(facts.listed(run.results.settings)),
                hardware=tuple(facts.listed(run.results.hardware)),
            )
            for run in runs
        ),
    )


def render(
    sections: Sequence[Section],
    streams: Sequence[Picture] = (),
    robustness: Sequence[Picture] = (),
) -> str:
    """Return the page as HTML; every text from a results file is escaped."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["png"] = data_uri
    environment.filters["percent"] = tables.percent
    environment.filters["p"] = p_value
    environment.filters["shown"] = shown_text
    environment.filters["way"] = lambda run: tables.way_of(run, run.chosen)
    source = resources.files("training.report").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        sections=sections, streams=streams, robustness=robustness, words=WORDS, top=TOP
    )


def write_page(
    page: str, sections: Sequence[Section], others: Sequence[Picture], *, folder: Path
) -> Path:
    """Write a new folder with the page and every picture as PNG; returns the page's file."""
    with new_folder(folder) as temporary:
        (temporary / PAGE).write_text(page, encoding="utf-8")
        for picture in chain(*(section.pictures for section in sections), others):
            (temporary / f"{picture.name}.png").write_bytes(picture.light)
            (temporary / f"{picture.name}-dark.png").write_bytes(picture.dark)
    return folder / PAGE


def data_uri(png: bytes) -> str:
    """A PNG as a data: address."""
    return f"data:image/png;base64,{b64encode(png).decode('ascii')}"


def shown_text(text: str) -> str:
    """A text of the data as the page shows it: not too long, without what HTML does not allow.

    A control character or half of a surrogate pair becomes the replacement character.
    """
    cut = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
    return "".join("\ufffd" if is_forbidden(character) else character for character in cut)


def is_forbidden(character: str) -> bool:
    """Whether HTML or UTF-8 has no such character: a control or half of a surrogate pair."""
    return category(character) in ("Cc", "Cs") and character not in "\t\n"


def pictures(anchor: str, panels: Sequence[Panel]) -> tuple[Picture, ...]:
    """Draw panels; their files' names begin with `anchor`."""
    return tuple(
        Picture(
            name=f"{anchor}-{panel.name}",
            panel=panel,
            light=draw(panel, LIGHT),
            dark=draw(panel, DARK),
        )
        for panel in panels
    )
