"""Novel labels in IRENE's settings, and what a reranker changes for them.

    MEASURED/novel/NAME.json    what `lab score-novel --json` wrote

Files of bundles with a reranker have a table of their own: answers with and without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from service.core.errors import InvalidData
from training.documents import read_json
from training.evaluation.results import RERANKED
from training.lab.report.tables import Table, percent

FOLDER = "novel"
METRICS = ("P@1", "P@5", "R@30")
SERVED_METRICS = (*METRICS, "novel_R@5", "novel_R@30", "novel_R@100")

Place = tuple[str, str, str]  # setting, candidates and method of a row
Figures = Mapping[Place, Mapping[str, float]]

INTRODUCTION = """\
## Novel keywords

A share of the labels is hidden in training ({fraction:.0%}) and posted afterwards: without a query
(zero-shot) or with one (one-shot). The candidates are the novel labels alone, or all labels. Among
all labels, label keys alone are searched unless the row names the memory or instance rows. Columns
that name UniDEC are of its encoder; the combiner is then one over its classifiers.
[notes.md](notes.md#novel-keywords) has the commands.

{counts}.
"""

SECOND_RANKING = """\
### A second ranking of novel keywords

What is served among all labels, by the memory alone and with trees that rank its best labels again.
`novel R@k` is the recall of the novel labels alone, over the rows that have one.
"""

# Method in the results -> what a novel label's key is made of, in the table's order.
METHODS = {
    "text": "the text, E(z)",
    "irene": "**IRENE, C(u)**",
    "attention": "attention over three neighbours, as in the paper",
    "embeddings": "the same, with texts instead of classifiers",
    "sum": "sum of the text and three neighbours",
    "ncm": "NCM, mean of the known queries",
    "rae-instances": "RAE-XMC's instance rows alone",
    "text+instance": "text and instance row",
    "irene+instance": "IRENE and instance row: what is served",
    "text+memory": "the text, in the memory",
    "irene+memory": "IRENE, in the memory: what is served",
}

# The method that a service uses in each setting: the first one that was measured.
SERVED = {
    "zero-shot": ("irene+memory", "text+memory"),
    "one-shot": ("irene+instance", "text+instance"),
}


def novel_section(measured: Path) -> Iterator[str]:
    """Yield the section's lines, none without results; raises `InvalidData` for a damaged file."""
    documents = {path.stem: _read(path) for path in sorted((measured / FOLDER).glob("*.json"))}
    figures = {name: _figures(document) for name, document in documents.items()}
    twice = {name: of for name, of in figures.items() if any(RERANKED in place for place in of)}
    once = {name: documents[name] for name in documents if name not in twice}
    if once:
        yield _introduction(once)
        yield from _methods({name: figures[name] for name in once})
    if twice:
        yield SECOND_RANKING
        yield from _second_ranking(twice)


def _introduction(documents: Mapping[str, Mapping[str, Any]]) -> str:
    splits = {name: document["split"] for name, document in documents.items()}
    counts = "; ".join(
        f"{name}: {split['novel']:,} novel labels of {split['novel'] + split['seen']:,}"
        for name, split in splits.items()
    )
    fraction = next(iter(splits.values()))["fraction"]
    return INTRODUCTION.format(fraction=fraction, counts=counts)


def _methods(figures: Mapping[str, Figures]) -> Iterator[str]:
    """A row for each method in each setting."""
    headings = ["setting", "candidates", "a novel label's key"]
    headings += [f"{name}: {metric}" for name in figures for metric in METRICS]
    places = dict.fromkeys(place for of in figures.values() for place in of)
    lines = [
        [*place[:2], METHODS.get(place[2], place[2]), *_cells(place, figures)]
        for place in sorted(places, key=_order)
    ]
    yield from Table(headings=headings, rows=lines, texts=3).markdown()


def _second_ranking(figures: Mapping[str, Figures]) -> Iterator[str]:
    """Yield a row without trees and one with them, for each file and setting."""
    headings = ["run", "setting", "ranked by", *(name.replace("_", " ") for name in SERVED_METRICS)]
    lines = []
    for name, of in figures.items():
        for setting, methods in SERVED.items():
            served = next(method for method in methods if (setting, "all", method) in of)
            for method, said in ((served, "the memory"), (RERANKED, "trees as well")):
                metrics = of[setting, "all", method]
                cells = [percent(metrics[metric]) for metric in SERVED_METRICS]
                lines.append([name, setting, said, *cells])
    yield from Table(headings=headings, rows=lines, texts=3).markdown()


def _order(place: Place) -> tuple[bool, bool, int]:
    """Sort key: zero-shot before one-shot, novel candidates before all, methods as in `METHODS`."""
    setting, candidates, method = place
    methods = list(METHODS)
    number = methods.index(method) if method in methods else len(methods)
    return setting != "zero-shot", candidates != "novel", number


def _cells(place: Place, figures: Mapping[str, Figures]) -> Iterator[str]:
    for of in figures.values():
        for metric in METRICS:
            yield percent(of[place][metric]) if place in of else ""


def _figures(document: Mapping[str, Any]) -> Figures:
    return {
        (row["setting"], row["candidates"], row["method"]): row["metrics"]
        for row in document["rows"]
    }


def _read(path: Path) -> Any:
    document = read_json(path)
    for field in ("split", "rows"):
        if not isinstance(document, dict) or field not in document:
            raise InvalidData(path, "is missing; `lab score-novel --json` writes it", field=field)
    return document
