"""Metrics of the test rows on disk, in one form for every system; the report compares them.

| file           | content                                                                      |
|----------------|------------------------------------------------------------------------------|
| `results.json` | format, version, system, data set, seconds of training; a list of `Result`s  |
| `rows.npz`     | for paired tests: metrics of each row by the chosen result, [n, 3] in float32|

Metrics are in percent. n is the number of test rows with an unfiltered label, the same for every
system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import orjson
from numpy.typing import NDArray

from service.core.errors import InvalidData
from service.core.files.atomic import replaced_file
from training.datasets.dataset import Dataset
from training.datasets.propensity import label_frequency
from training.documents import read_document, write_json
from training.evaluation.metrics import (
    macro_f1_by_segment,
    metric_table,
    ranking_outcome,
    row_metrics,
)
from training.evaluation.weighted_metrics import weighted_table

FILE, ROWS = "results.json", "rows.npz"
FORMAT, VERSION = "keymatch-results", 1
RERANKED = "reranked"  # the method name of results by a reranker, see training/reranking
PER_ROW = ("P@1", "P@5", "R@100")  # the columns of rows.npz


@dataclass(frozen=True, kw_only=True)
class Result:
    """One way to rank the labels of all test rows.

    `method` is the name of this way (`memory`, `labels only`, `instances only`, `separate`,
    `classifiers`, ...). `memorization`, `depth` and `tau` are lambda, b and the memory's
    temperature, if the method uses them. `chosen` marks the way that was chosen on held-out rows.
    `segments` is F1@5 by label frequency (RAE-XMC, Table 2).
    """

    method: str
    metrics: dict[str, float]
    segments: dict[str, float]
    memorization: float | None = None
    depth: int | None = None
    tau: float | None = None
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class Check:
    """Metrics of the held-out rows at one lambda, after `seconds` of training."""

    step: int
    seconds: float
    memorization: float
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """All results of one run or one peer system on one data set."""

    name: str  # of the recipe or peer
    system: str
    dataset: str
    propensity: dict[str, float]
    results: tuple[Result, ...]
    training_seconds: float | None = None  # None if it was not trained on this data
    history: tuple[Check, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"  # of the encoder's arithmetic; `auto` is the hardware's fastest
    held_out_rows: int = 0  # rows by which the chosen result was chosen
    # Metrics of each test row for the chosen result, [n, 3], columns as in PER_ROW.
    rows: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, len(PER_ROW))))


def place_of_chosen(results: Sequence[Result]) -> int:
    """The position of the chosen result; 0 if none is marked."""
    return next((place for place, result in enumerate(results) if result.chosen), 0)


def rows_of_chosen(measured: Sequence[tuple[Result, NDArray[np.float64]]]) -> NDArray[np.float64]:
    """Metrics of each row for the chosen result, [n, 3]."""
    return measured[place_of_chosen([result for result, _ in measured])][1]


def measured(
    dataset: Dataset,
    ranked: NDArray[np.int64],
    *,
    method: str,
    memorization: float | None = None,
    depth: int | None = None,
    tau: float | None = None,
    chosen: bool = False,
    weighted: bool = False,
) -> tuple[Result, NDArray[np.float64]]:
    """Measure the ranked labels [N, k] of all test rows, padded with -1.

    k must be at least `labels_to_rank` for the test rows' filtered pairs. Returns the result and
    the metrics of each row, [n, 3]. If `weighted`, the result includes the weighted metrics.
    """
    test = dataset.test
    outcome = ranking_outcome(ranked, test.labels_of, filtered=test.filtered)
    metrics = metric_table(outcome, inverse_propensities=dataset.inverse_propensities())
    if weighted:
        metrics |= weighted_table(ranked, test.labels_of, filtered=test.filtered)
    segments = macro_f1_by_segment(
        outcome, train_frequency=label_frequency(dataset.train.labels_of), k=5
    )
    result = Result(
        method=method,
        metrics=metrics,
        segments={name: 100.0 * value for name, value in segments.items()},
        memorization=memorization,
        depth=depth,
        tau=tau,
        chosen=chosen,
    )
    return result, row_metrics(outcome)


def write(results: Results, folder: Path) -> None:
    """Write `results.json` and `rows.npz` into a folder, which may hold other files."""
    document = {"format": FORMAT, "version": VERSION, **asdict(results)}
    del document["rows"]
    folder.mkdir(parents=True, exist_ok=True)
    with replaced_file(folder / ROWS) as file:
        np.savez_compressed(file, chosen=results.rows.astype(np.float32))
    write_json(folder / FILE, document)


def read(folder: Path) -> Results:
    """Read a folder's results; raises `InvalidData` naming the file."""
    path = folder / FILE
    document = read_document(path, format_name=FORMAT, version=VERSION)
    try:
        document["results"] = tuple(Result(**entry) for entry in document["results"])
        document["history"] = tuple(Check(**entry) for entry in document["history"])
        return Results(**document, rows=_rows(folder / ROWS))
    except (KeyError, TypeError) as error:
        raise InvalidData(path, f"is not what `score` writes: {error}") from error


def _rows(path: Path) -> NDArray[np.float64]:
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            rows: NDArray[np.float64] = arrays["chosen"].astype(np.float64)
            return rows
    except (OSError, KeyError, ValueError, BadZipFile) as error:
        raise InvalidData(path, "is missing or damaged; score the run again") from error


def facts_of_run(run: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Results` that only a run has, from the `facts` in its `run.json`."""
    return {
        "held_out_rows": facts["settings"]["validation"]["rows"],
        "training_seconds": facts["progress"]["seconds"],
        "history": tuple(history_of(run)),
        "settings": _without_places(facts.get("settings", {})),
        "hardware": facts.get("hardware", {}),
    }


def _without_places(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with the oracle's name instead of its folder, which others do not have."""
    oracle = oracle_of(settings)
    if oracle is None:
        return settings
    return {**settings, "guidance": {**settings["guidance"], "oracle": oracle}}


def oracle_of(settings: dict[str, Any]) -> str | None:
    """The name of the oracle run that guided a run with these settings; None if there was none."""
    oracle = settings.get("guidance", {}).get("oracle")
    return None if oracle is None else Path(oracle).name


def history_of(run: Path) -> list[Check]:
    """The checks on held-out rows during training, one per step and lambda, from metrics.jsonl."""
    history: dict[tuple[int, float], Check] = {}
    for line in (run / "metrics.jsonl").read_bytes().splitlines():
        entry = orjson.loads(line)
        if entry["kind"] != "validation":
            continue
        values: dict[str, float] = {}
        for key, value in entry.items():
            metric, at, memorization = key.partition(" at ")
            if at:
                values[metric], best = value, float(memorization)
        history[entry["step"], best] = Check(
            step=entry["step"], seconds=entry["seconds"], memorization=best, metrics=values
        )
    return list(history.values())
