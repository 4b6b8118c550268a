"""Evaluation of a bundle on a data set's test rows, by the same predictor that serves.

Shapes: n test rows, d dimensions, b retrieved keys a row, k ranked labels a row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from service.core.bundle import Bundle, open_bundle
from service.core.durable import write_file
from service.core.encoder import OnnxEncoder, encode_all
from service.core.errors import InvalidInput
from service.core.memory import KnowledgeMemory
from service.core.predictor import Predictor, voting_kind
from service.core.types import Floats, PredictOptions, Role, Rows
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.metrics import evaluate as measure
from training.propensity import inverse_propensity

RANKED = 100  # the deepest metric is R@100
SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100", "F1@5", "coverage@5")
_CHUNK_ROWS = 512  # test rows between two progress reports

Retrieved = tuple[Floats, Rows]
Report = Callable[[str, int, int], None]  # what, done, total


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """The metrics, in percent, of one choice of lambda."""

    memorization: float
    depth: int
    metrics: dict[str, float]


def evaluate_bundle(
    bundle: Bundle,
    dataset: Dataset,
    *,
    memorizations: Sequence[float],
    depth: int,
    exact: bool,
    threads: int,
    report: Report,
) -> list[EvaluationRow]:
    """Measure the bundle on the test rows, once for each lambda in `memorizations`.

    Keys are retrieved once for all lambdas that search the same rows. `exact` scans every key.
    Raises `InvalidInput` when the bundle was made from other labels.
    """
    if list(bundle.label_ids) != list(dataset.labels.uids):
        raise InvalidInput(
            f"bundle {bundle.manifest.name} was made from {bundle.manifest.dataset!r};"
            f" its labels are not those of {dataset.name!r}"
        )
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    predictor = Predictor(encoder, tau=bundle.manifest.predictor.tau)
    view = KnowledgeMemory(bundle).view
    texts = dataset.test.instances.texts
    vectors = encode_all(
        encoder,
        texts,
        role=Role.QUERY,
        threads=threads,
        progress=lambda done: report("encode", done, len(texts)),
    )
    most_filtered = int(np.diff(dataset.test.filtered.indptr).max(initial=0))
    options = PredictOptions(top_k=RANKED + most_filtered, depth=depth, exact=exact)
    inverse_propensities = inverse_propensity(
        dataset.train.labels_of, a=dataset.propensity.a, b=dataset.propensity.b
    )
    retrieved: dict[Any, list[Retrieved]] = {}
    rows = []
    for memorization in memorizations:
        chosen = replace(options, memorization=memorization)
        kind = voting_kind(memorization)
        if kind not in retrieved:
            retrieved[kind] = [
                predictor.retrieve(view, vectors[chunk], chosen)
                for chunk in _chunks(len(texts), "retrieve", report)
            ]
        ranked = np.full((len(texts), chosen.top_k), -1, np.int64)  # [n, k]
        chunks = _chunks(len(texts), f"rank at lambda {memorization}", report)
        for chunk, keys in zip(chunks, retrieved[kind], strict=True):
            for row, ranking in enumerate(predictor.vote(view, keys, chosen), start=chunk.start):
                ranked[row, : len(ranking.columns)] = ranking.columns
        metrics = measure(
            ranked,
            dataset.test.labels_of,
            inverse_propensities=inverse_propensities,
            filtered=dataset.test.filtered,
        )
        rows.append(EvaluationRow(memorization=memorization, depth=depth, metrics=metrics))
    return rows


def evaluate(
    *,
    bundle: Path,
    data: Path,
    memorization: Annotated[
        tuple[float, ...] | None, Parameter(consume_multiple=True, negative=())
    ] = None,
    depth: int | None = None,
    exact: bool = False,
    json: Path | None = None,
) -> None:
    """Measure a bundle on a data set's test rows, with the predictor that serves.

    Parameters
    ----------
    bundle
        The bundle's folder.
    data
        The data set's folder; its labels must be those of the bundle.
    memorization
        One or more values of lambda in 0..1, each measured; default: the bundle's.
    depth
        Number of retrieved keys a query (b), 1..2000; default: the bundle's.
    exact
        Scan every key in place of the HNSW graph.
    json
        Also write the figures, in percent, to this file.
    """
    opened = open_bundle(bundle)
    dataset = lf_xmc.read(data)
    defaults = opened.manifest.predictor
    chosen = memorization or (defaults.memorization,)
    depth = defaults.depth if depth is None else depth
    if not all(0.0 <= value <= 1.0 for value in chosen):
        raise InvalidInput("memorization must lie in 0..1")
    if not 1 <= depth <= 2000:
        raise InvalidInput("depth must lie in 1..2000")
    console = Console()
    with Progress(console=console) as progress:
        steps: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in steps:
                steps[what] = progress.add_task(what, total=total)
            progress.update(steps[what], completed=done)

        rows = evaluate_bundle(
            opened,
            dataset,
            memorizations=chosen,
            depth=depth,
            exact=exact,
            threads=os.cpu_count() or 1,
            report=report,
        )
    console.print(_table(rows, dataset, exact=exact))
    if json is not None:
        document = {
            "dataset": dataset.name,
            "bundle": opened.manifest.name,
            "exact": exact,
            "propensity": {"a": dataset.propensity.a, "b": dataset.propensity.b},
            "rows": [vars(row) for row in rows],
        }
        write_file(json, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def _chunks(rows: int, what: str, report: Report) -> Iterator[slice]:
    for start in range(0, rows, _CHUNK_ROWS):
        stop = min(start + _CHUNK_ROWS, rows)
        yield slice(start, stop)
        report(what, stop, rows)


def _table(rows: Sequence[EvaluationRow], dataset: Dataset, *, exact: bool) -> Table:
    search = "exact search" if exact else "HNSW"
    propensity = f"propensity A={dataset.propensity.a} B={dataset.propensity.b}"
    table = Table(title=f"{dataset.name}: {search}, {propensity}, in percent")
    for column in ("lambda", "depth", *SHOWN):
        table.add_column(column, justify="right")
    for row in rows:
        figures = [f"{row.metrics[name]:.2f}" for name in SHOWN]
        table.add_row(f"{row.memorization:g}", str(row.depth), *figures)
    return table
