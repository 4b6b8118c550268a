"""`python -m training evaluate-novel`: metrics of novel labels, zero- and one-shot."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
from rich.table import Table

from service.command_line import open_console
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.errors import InvalidConfig
from service.core.files.atomic import refuse_unwritable, write_file
from training.commands.options import MANY
from training.datasets import novel_split
from training.experiments.novel_evaluation import NovelRow
from training.experiments.open_novel import open_novel_evaluation
from training.progress import stages

SHOWN = ("P@1", "P@3", "P@5", "R@10", "R@30", "R@100")
OF_NOVEL = ("novel_R@5", "novel_R@30")  # where all labels are ranked


def evaluate_novel(
    *,
    bundle: Path,
    data: Path,
    beside: Annotated[tuple[str, ...], MANY] = (),
    json: Path | None = None,
) -> None:
    """Measure a bundle on labels that are not in it, in IRENE's four settings.

    Novel labels are represented as by `POST /labels`. Compares the methods text, combiner,
    mean of known queries (NCM), RAE-XMC's instance rows, and combinations of them; "reranked" is
    what is served by a bundle that ranks a second time.

    Parameters
    ----------
    bundle
        A bundle of SPLIT/seen, or a snapshot of it to which no label was posted.
    data
        SPLIT, as `python -m training split novel` writes it.
    beside
        Ablations, NAME=BUNDLE: bundles of the same encoder with other combiners or classifiers.
    json
        Also write the figures, in percent, to this file.
    """
    if json is not None:
        refuse_unwritable(json.parent)
    split = novel_split.read(data)
    opened, ablations = open_bundle(bundle), _open_ablations(beside)
    console = open_console()
    with stages(console) as report:
        evaluation = open_novel_evaluation(
            opened, split, ablations=ablations, threads=os.cpu_count() or 1, report=report
        )
        rows = []
        for row in evaluation.rows():
            rows.append(row)
            report("rank", len(rows), len(rows) + 1)
        report("rank", len(rows), len(rows))
    name = split.everything.name
    console.print(_table(rows, name))
    if opened.novel is None:
        console.print(
            "the bundle has no combiner: a novel label is represented by its text",
            soft_wrap=True,
        )
    if json is not None:
        _write_json(json, rows, split, opened, ablations)


def _write_json(
    path: Path,
    rows: Sequence[NovelRow],
    split: novel_split.NovelSplit,
    bundle: Bundle,
    ablations: Mapping[str, Bundle],
) -> None:
    document = {
        "dataset": split.everything.name,
        "bundle": bundle.manifest.name,
        "split": asdict(split.facts),
        "novel": None if bundle.novel is None else asdict(bundle.novel.facts),
        "beside": {
            name: asdict(ablation.novel.facts)
            for name, ablation in ablations.items()
            if ablation.novel
        },
        "rows": [vars(row) for row in rows],
    }
    write_file(path, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def _open_ablations(given: Sequence[str]) -> dict[str, Bundle]:
    """Bundles by name; raises `InvalidConfig` if one is not NAME=BUNDLE or a name repeats."""
    opened: dict[str, Bundle] = {}
    for pair in given:
        name, is_pair, folder = pair.partition("=")
        if not (name and is_pair and folder):
            raise InvalidConfig(f"--beside takes NAME=BUNDLE, not {pair!r}")
        if name in opened:
            raise InvalidConfig(f"--beside names {name!r} twice")
        opened[name] = open_bundle(Path(folder))
    return opened


def _table(rows: Sequence[NovelRow], name: str) -> Table:
    table = Table(title=f"{name}, percent of test rows that have one of the candidates")
    for column in ("setting", "candidates", "method"):
        table.add_column(column)
    for metric in (*SHOWN, *OF_NOVEL):
        table.add_column(metric.replace("_", " "), justify="right")
    for row in rows:
        figures = [f"{row.metrics[metric]:.2f}" for metric in SHOWN]
        figures += [f"{row.metrics[metric]:.2f}" for metric in OF_NOVEL if metric in row.metrics]
        table.add_row(row.setting, row.candidates, row.method, *figures)
    return table
