"""training/measured/README.md: the committed results of all systems as Markdown tables.

    MEASURED/SET/RUN/results.json        what `score` or `peer` wrote; one table for each data set
    MEASURED/SET/RUN/seed-1/...          the same of other seeds
    MEASURED/SET/robustness.json         what `robustness` wrote
    MEASURED/unidec/DATASET/RUN/...      UniDEC's ablations, see `training.report.unidec_tables`
    MEASURED/novel/DATASET.json          what `evaluate-novel --json` wrote; one table for all

SET names what was run together: a data set, or a comparison. Sets with oracles, guided runs or a
robustness.json make a section of their own, one a data set (`training.report.mogic`). The page
depends on these files alone. A test compares it with the committed page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from service.core.errors import InvalidData, InvalidInput
from training.comparisons import comparison as comparisons
from training.evaluation import results, robustness
from training.report.markdown import markdown_table
from training.report.mogic.relations import is_of_mogic
from training.report.mogic.section import mogic_section
from training.report.orderings import orderings
from training.report.run_table import devices, run_table
from training.report.runs import Run, grouped, read_run
from training.report.seeds import seed_lines
from training.report.tables import percent
from training.report.unidec_tables import unidec_section

NOVEL = "novel"
ANY_DATA = "own-data"  # the comparison of a data set that has none by its name
NOVEL_METRICS = ("P@1", "P@5", "R@30")

INTRODUCTION = """\
# Measured quality

All figures are in percent, on the test rows; every key is scanned. [notes.md](notes.md) says how
each run was made, what the figures mean, and what runs that are not kept here measured.
[not-adopted.md](not-adopted.md) lists ideas that were measured and removed.

This page is generated from the `results.json` files of this folder; change them, not the page:

    python -m training tables --measured training/measured --out training/measured/README.md
"""

SIDE_BY_SIDE = """\
{rows:,} test rows. `python -m training compare {comparison}` trains and scores these systems;
`python -m training report --runs training/measured/{dataset}/* --out report` shows all metrics.
Lambda (memorization), b (depth) and tau (temperature) are chosen on {held_out} held-out training
rows. "Labels alone" is the same encoder without the memory (lambda 0). Peers have no lambda. The
best figure of each column is bold. Trained on {devices}.
"""

ORDERINGS = """\
Whether the paper's orderings hold here, counted over all pairs of figures that the claim compares:
"""

NOVEL_INTRODUCTION = """\
## Novel keywords

A share of the labels is hidden in training ({fraction:.0%}) and posted afterwards: without a query
(zero-shot) or with one (one-shot). The candidates are the novel labels alone, or all labels. Among
all labels, label keys alone are searched unless the row names the memory or instance rows. Columns
that name UniDEC are of its encoder; the combiner is then one over its classifiers.
[notes.md](notes.md#novel-keywords) has the commands.

{counts}.
"""

# Method in the results -> what the key of a novel label is made of; the table's order of rows.
NOVEL_METHODS = {
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


def quality_page(measured: Path) -> str:
    """The page for a folder of results.

    Raises `InvalidInput` or `InvalidData` for a folder without results and for results that cannot
    be compared.
    """
    folders = sorted(path.parent for path in measured.glob(f"*/*/{results.FILE}"))
    if not folders:
        raise InvalidInput(f"{measured} holds no results (SET/RUN/{results.FILE})")
    read = [read_run(folder) for folder in folders]
    noise = {path: robustness.read(path) for path in sorted(measured.glob(f"*/{robustness.FILE}"))}
    of_mogic = {run.folder.parent for run in read if is_of_mogic(run)}  # whole sets
    of_mogic |= {path.parent for path in noise}
    plain = grouped([run for run in read if run.folder.parent not in of_mogic])
    guided = grouped([run for run in read if run.folder.parent in of_mogic])
    parts = [INTRODUCTION]
    parts += ["\n".join(_dataset_section(dataset, runs)) for dataset, runs in plain.items()]
    for dataset, runs in guided.items():
        parts.append("\n".join(mogic_section(dataset, runs, noise)))
    unidec = list(unidec_section(measured))
    if unidec:
        parts.append("\n".join(unidec))
    novel = {path.stem: _read_novel(path) for path in sorted((measured / NOVEL).glob("*.json"))}
    if novel:
        parts.append("\n".join(_novel_section(novel)))
    return "\n".join(parts)


def _dataset_section(dataset: str, runs: Sequence[Run]) -> Iterator[str]:
    yield f"## {dataset}\n"
    yield SIDE_BY_SIDE.format(
        dataset=dataset,
        comparison=dataset if dataset in comparisons.names() else ANY_DATA,
        held_out=_held_out(runs),
        rows=len(runs[0].rows),
        devices=devices(runs),
    )
    yield from run_table(runs)
    yield ""
    yield from seed_lines(runs)
    checked = [ordering for ordering in orderings(runs) if ordering.findings]
    if checked:
        yield ORDERINGS
        for ordering in checked:
            claim = ordering.claim.replace("λ", "lambda")
            yield f"- {ordering.source}: {claim}: {ordering.verdict}"
        yield ""


def _held_out(runs: Sequence[Run]) -> str:
    """How many rows the runs hold out; where they differ, both numbers."""
    counts = sorted({run.results.held_out_rows for run in runs} - {0})
    return " or ".join(f"{count:,}" for count in counts) or "no"


def _novel_section(novel: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    first = next(iter(novel.values()))
    counts = "; ".join(
        f"{dataset}: {document['split']['novel']:,} novel labels of"
        f" {document['split']['novel'] + document['split']['seen']:,}"
        for dataset, document in novel.items()
    )
    yield NOVEL_INTRODUCTION.format(fraction=first["split"]["fraction"], counts=counts)
    figures = {
        dataset: {
            (row["setting"], row["candidates"], row["method"]): row["metrics"]
            for row in document["rows"]
        }
        for dataset, document in novel.items()
    }
    headings = ["setting", "candidates", "a novel label's key"]
    headings += [f"{dataset}: {metric}" for dataset in novel for metric in NOVEL_METRICS]
    places = dict.fromkeys(place for rows in figures.values() for place in rows)
    yield from markdown_table(
        headings,
        [
            [*place[:2], NOVEL_METHODS.get(place[2], place[2]), *_novel_figures(place, figures)]
            for place in sorted(places, key=_novel_order)
        ],
        texts=3,
    )
    yield ""


def _novel_order(place: tuple[str, str, str]) -> tuple[bool, bool, int]:
    """Zero-shot before one-shot, novel candidates before all, methods as in `NOVEL_METHODS`."""
    setting, candidates, method = place
    methods = list(NOVEL_METHODS)
    number = methods.index(method) if method in methods else len(methods)
    return setting != "zero-shot", candidates != "novel", number


def _novel_figures(
    place: tuple[str, str, str],
    figures: Mapping[str, Mapping[tuple[str, str, str], Mapping[str, float]]],
) -> Iterator[str]:
    for rows in figures.values():
        for metric in NOVEL_METRICS:
            yield percent(rows[place][metric]) if place in rows else ""


def _read_novel(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise InvalidData(path, f"not valid JSON: {error}") from error
    for field in ("split", "rows"):
        if not isinstance(document, dict) or field not in document:
            raise InvalidData(path, "is missing; `evaluate-novel --json` writes it", field=field)
    return document
