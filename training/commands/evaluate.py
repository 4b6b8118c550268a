"""`python -m training evaluate`: a bundle's metrics, as a table and as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import orjson
from cyclopts import Parameter
from rich.table import Table

from service.command_line import open_console
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unwritable, write_file
from training.commands.options import MANY
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, require_test_rows
from training.evaluation.evaluation import Evaluation, EvaluationRow, Items, open_evaluation
from training.evaluation.weighted_metrics import ALL_ALIKE, SHOWN_WEIGHTED, weights_differ
from training.progress import Report, stages

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100", "F1@5", "coverage@5")


def evaluate(
    *,
    bundle: Path,
    data: Path,
    memorization: Annotated[tuple[float, ...] | None, MANY] = None,
    depth: int | None = None,
    exact: bool = False,
    weighted: Annotated[bool, Parameter(negative=())] = False,
    items: Items = "predicted",
    rerank: bool | None = None,
    json: Path | None = None,
) -> None:
    """Measure a bundle on a data set's test rows, with the scoring and ranking of the service.

    Parameters
    ----------
    bundle
        The bundle's folder.
    data
        The data set's folder; its labels must be those of the bundle.
    memorization
        One or more values of lambda in 0..1; each is measured. Default: the bundle's.
    depth
        Number of retrieved keys a query (b), 1..2000; default: the bundle's.
    exact
        Scan every key in place of the HNSW graph.
    weighted
        Add P@k, R@k and nDCG@k in which a more relevant label of a row counts more.
    items
        For a bundle of OAK: a test row attends to the items that it is predicted, as it is served
        by default, or to all that the data link it to, as a request that names them.
    rerank
        Rank the best labels a second time, or do not; default: as the bundle can.
    json
        Also write the figures, in percent, to this file.
    """
    if json is not None:
        refuse_unwritable(json.parent)
    opened, dataset = open_bundle(bundle), lf_xmc.read(data)
    require_test_rows(dataset)
    defaults = opened.manifest.predictor
    chosen = memorization or (defaults.memorization,)
    depth = defaults.depth if depth is None else depth
    _check_ranges(chosen, depth)
    console, how = open_console(), _How(exact=exact, items=items, rerank=rerank, weighted=weighted)
    with stages(console) as report:
        evaluation = _opened(opened, dataset, depth, how, report)
        rows = list(evaluation.rows(chosen))
    again = evaluation.reranker is not None
    console.print(_table(rows, dataset, how, again=again))
    if weighted and not weights_differ(dataset.test.labels_of):
        console.print(ALL_ALIKE, soft_wrap=True)
    if json is not None:
        facts = {"bundle": opened.manifest.name, "exact": exact, "items": items, "reranked": again}
        _write_json(json, rows, dataset, facts)


@dataclass(frozen=True, kw_only=True)
class _How:
    """How the test rows are answered and measured, as the options say."""

    exact: bool
    items: Items
    rerank: bool | None
    weighted: bool


def _opened(bundle: Bundle, dataset: Dataset, depth: int, how: _How, report: Report) -> Evaluation:
    evaluation = open_evaluation(
        bundle,
        dataset,
        depth=depth,
        exact=how.exact,
        threads=os.cpu_count() or 1,
        report=report,
        items=how.items,
        rerank=how.rerank,
    )
    return replace(evaluation, weighted=how.weighted)


def _check_ranges(memorizations: Sequence[float], depth: int) -> None:
    if not all(0.0 <= value <= 1.0 for value in memorizations):
        raise InvalidInput("memorization must lie in 0..1")
    if not 1 <= depth <= 2000:
        raise InvalidInput("depth must lie in 1..2000")


def _write_json(
    path: Path, rows: Sequence[EvaluationRow], dataset: Dataset, facts: Mapping[str, object]
) -> None:
    document = {
        "dataset": dataset.name,
        **facts,
        "propensity": {"a": dataset.propensity.a, "b": dataset.propensity.b},
        "rows": [vars(row) for row in rows],
    }
    write_file(path, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def _table(rows: Sequence[EvaluationRow], dataset: Dataset, how: _How, *, again: bool) -> Table:
    """One row for each metric and one column for each lambda, so that it fits a narrow terminal."""
    search = "exact search" if how.exact else "HNSW"
    given = "" if how.items == "predicted" else f", {how.items} items"
    given += ", ranked a second time" if again else ""
    table = Table(
        title=f"{dataset.name}, percent of test rows, {search}, depth {rows[0].depth}{given},\n"
        f"propensity A={dataset.propensity.a} B={dataset.propensity.b}",
    )
    table.add_column("lambda")
    for row in rows:
        table.add_column(f"{row.memorization:g}", justify="right")
    for name in (*SHOWN, *SHOWN_WEIGHTED):
        if name not in rows[0].metrics:
            continue
        table.add_row(name, *(f"{row.metrics[name]:.2f}" for row in rows))
    return table
