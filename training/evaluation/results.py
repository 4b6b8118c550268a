"""Metrics of the test rows on disk: what the report compares, whichever system ranked the labels.

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
from service.core.files.atomic import write_file
from training.datasets.dataset import Dataset
from training.datasets.propensity import inverse_propensity, label_frequency
from training.evaluation.metrics import (
    DEEPEST_RANK,
    RankingOutcome,
    macro_f1_by_segment,
    metric_table,
    ranking_outcome,
)
from training.evaluation.weighted_metrics import weighted_table

FILE, ROWS = "results.json", "rows.npz"
FORMAT, VERSION = "keymatch-results", 1
RERANKED = "reranked"  # the method of a second ranking, see training/reranking
PER_ROW = ("P@1", "P@5", "R@100")  # the columns of each array of rows.npz


@dataclass(frozen=True, kw_only=True)
class Result:
    """One way to rank the labels of all test rows.

    `method` is the way of ranking (`memory`, `labels only`, `instances only`, `separate`,
    `classifiers`, ...); `memorization`, `depth` and `tau` are lambda, b and the memory's
    temperature where the method has them. `chosen` marks the way that was chosen on held-out rows.
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
    """Metrics of the held-out rows during training: after `seconds`, at one lambda."""

    step: int
    seconds: float
    memorization: float
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """All results of one run or one peer on one data set."""

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
    held_out_rows: int = 0  # on which the chosen result was chosen
    # Metrics of each test row by the chosen result, [n, 3], columns as in PER_ROW.
    rows: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, len(PER_ROW))))


def place_of_chosen(results: Sequence[Result]) -> int:
    """The position of the chosen result; 0 where none is marked."""
    return next((place for place, result in enumerate(results) if result.chosen), 0)


def rows_of_chosen(measured: Sequence[tuple[Result, NDArray[np.float64]]]) -> NDArray[np.float64]:
    """Metrics of each row by the chosen result, [n, 3]."""
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
    """Measure the ranked labels [N, k] of all test rows, -1 where nothing is ranked.

    k must be at least `labels_to_rank` of the test rows' filtered pairs. Returns the result, if
    `weighted` with the weighted metrics as well, and the metrics of each row, [n, 3].
    """
    test = dataset.test
    outcome = ranking_outcome(ranked, test.labels_of, filtered=test.filtered)
    metrics = metric_table(
        outcome,
        inverse_propensities=inverse_propensity(
            dataset.train.labels_of, a=dataset.propensity.a, b=dataset.propensity.b
        ),
    )
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


def row_metrics(outcome: RankingOutcome) -> NDArray[np.float64]:
    """Each row's P@1, P@5 and R@100 in [0, 1], [n, 3]."""
    hits = outcome.hits
    return np.stack(
        [
            hits[:, :1].sum(axis=1) / 1.0,
            hits[:, :5].sum(axis=1) / 5.0,
            hits[:, :DEEPEST_RANK].sum(axis=1) / outcome.sizes,
        ],
        axis=1,
    )


def write(results: Results, folder: Path) -> None:
    """Write `results.json` and `rows.npz` into a folder, which may hold other files."""
    document = {"format": FORMAT, "version": VERSION, **asdict(results)}
    del document["rows"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ROWS).open("wb") as file:
        np.savez_compressed(file, chosen=results.rows.astype(np.float32))
    options = orjson.OPT_INDENT_2
    write_file(folder / FILE, orjson.dumps(document, option=options) + b"\n")


def read(folder: Path) -> Results:
    """Read a folder's results; raises `InvalidData` naming the file."""
    path = folder / FILE
    try:
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidData(
            path, f"cannot be read: {error.strerror}; is this a scored run?"
        ) from error
    except orjson.JSONDecodeError as error:
        raise InvalidData(path, f"not valid JSON: {error}") from error
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise InvalidData(path, f"must be {FORMAT!r}", field="format")
    if document.pop("version", None) != VERSION:
        raise InvalidData(
            path,
            f"must be {VERSION}, the version that this build reads",
            field="version",
        )
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
