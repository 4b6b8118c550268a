"""`keymatch lab score-novel`: measures the retrieval of novel labels, zero- and one-shot."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.table import Table as ConsoleTable

from service.command_line import open_console
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.errors import InvalidConfig
from service.core.files.atomic import refuse_unwritable
from training.commands.options import MANY
from training.documents import write_json
from training.evaluation.bundle_rows import require_held_out
from training.lab import novel_split
from training.lab.novel_evaluation import NovelRow
from training.lab.open_novel import open_novel_evaluation
from training.lab.report.tables import Table, percent
from training.progress import stages

SHOWN = ("P@1", "P@3", "P@5", "R@10", "R@30", "R@100")
OF_NOVEL = ("novel_R@5", "novel_R@30")  # shown in addition if all labels are ranked


def score_novel(
    *,
    bundle: Path,
    data: Path,
    beside: Annotated[tuple[str, ...], MANY] = (),
    json: Path | None = None,
) -> None:
    """Measure a bundle on labels that are not in it, in IRENE's four settings.

    Novel labels are represented as by `POST /labels`. Compares the methods text, combiner, mean of
    known queries (NCM), RAE-XMC's instance rows, and combinations of them. "reranked" is what a
    bundle with a reranker serves.

    Parameters
    ----------
    bundle
        A bundle of SPLIT/seen, or a snapshot of it to which no label was posted.
    data
        SPLIT, as `keymatch lab split novel` writes it.
    beside
        Ablations, NAME=BUNDLE: bundles of the same encoder with other combiners or classifiers.
    json
        Also write the figures, in percent, to this file.
    """
    if json is not None:
        refuse_unwritable(json.parent)
    split = novel_split.read(data)
    opened, ablations = open_bundle(bundle), _open_ablations(beside)
    for one in (opened, *ablations.values()):
        require_held_out(one.manifest)
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
    console.print(*_tables(rows, name), sep="\n")
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
    write_json(path, document)


def _open_ablations(given: Sequence[str]) -> dict[str, Bundle]:
    """Bundles by name; raises `InvalidConfig` if one is not NAME=BUNDLE or if a name repeats."""
    opened: dict[str, Bundle] = {}
    for pair in given:
        name, is_pair, folder = pair.partition("=")
        if not (name and is_pair and folder):
            raise InvalidConfig(f"--beside takes NAME=BUNDLE, not {pair!r}")
        if name in opened:
            raise InvalidConfig(f"--beside names {name!r} twice")
        opened[name] = open_bundle(Path(folder))
    return opened


def _tables(rows: Sequence[NovelRow], name: str) -> Iterator[ConsoleTable]:
    """Yield a table for each setting and each set of candidates."""
    for setting, candidates in dict.fromkeys((row.setting, row.candidates) for row in rows):
        chosen = [row for row in rows if (row.setting, row.candidates) == (setting, candidates)]
        shown = (*SHOWN, *(metric for metric in OF_NOVEL if metric in chosen[0].metrics))
        table = Table(
            headings=("method", *(metric.replace("_", " ") for metric in shown)),
            rows=[[row.method, *(percent(row.metrics[one]) for one in shown)] for row in chosen],
            texts=1,
        )
        yield table.console(
            f"{name}, {setting}, {candidates} labels are ranked: percent of test rows that have one"
            " of them"
        )
