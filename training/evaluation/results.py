"""Measured test rows on disk: what the report compares, whoever ranked the labels.

| file           | content                                                                    |
|----------------|----------------------------------------------------------------------------|
| `results.json` | format, version, who ranked what, how long it trained; a list of `Result`s |
| `rows.npz`     | for paired tests: the chosen result's rows, [n, 3] in float32              |

Metrics are in percent. n are the test rows with a label that counts, the same for every system.
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
from training.evaluation.metrics import Judged, evaluate, judge, macro_f1_by_segment

FILE, ROWS = "results.json", "rows.npz"
FORMAT, VERSION = "keymatch-results", 1
PER_ROW = ("P@1", "P@5", "R@100")  # the columns of each array of rows.npz
DEEPEST = 100


@dataclass(frozen=True, kw_only=True)
class Result:
    """One way to rank the labels of all test rows.

    `method` says how (`memory`, `dual encoder`, `kNN`, `separate`, `classifiers`, ...);
    `memorization`, `depth` and `tau` are lambda, b and the memory's temperature where it has them.
    `chosen` marks the way that was chosen on held-out rows. `segments` is F1@5 by label frequency
    (RAE-XMC, Table 2).
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
    """Held-out metrics on the way: after `seconds` of training, at a lambda."""

    step: int
    seconds: float
    memorization: float
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """All of one run's or one peer's results on one data set."""

    name: str  # of the recipe or peer
    system: str
    dataset: str
    propensity: dict[str, float]
    results: tuple[Result, ...]
    training_seconds: float | None = None  # None: not trained on this data
    history: tuple[Check, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"  # that the encoder was asked in; `auto` is its hardware's own
    held_out_rows: int = 0  # training rows that the chosen result was chosen on
    # The chosen result's, [n, 3], see PER_ROW.
    rows: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, len(PER_ROW))))


def place_of_chosen(found: Sequence[Result]) -> int:
    """Which result was chosen; the first where none is marked."""
    return next((place for place, one in enumerate(found) if one.chosen), 0)


def rows_of_chosen(found: Sequence[tuple[Result, NDArray[np.float64]]]) -> NDArray[np.float64]:
    """The chosen result's rows, [n, 3]."""
    return found[place_of_chosen([result for result, _ in found])][1]


def measured(
    dataset: Dataset,
    ranked: NDArray[np.int64],
    *,
    method: str,
    memorization: float | None = None,
    depth: int | None = None,
    tau: float | None = None,
    chosen: bool = False,
) -> tuple[Result, NDArray[np.float64]]:
    """Measure ranked labels [N, k] of all test rows, -1 where nothing is ranked.

    Give k = 100 and as many more as a row may have filtered (`ranked_labels`).
    """
    test = dataset.test
    metrics = evaluate(
        ranked,
        test.labels_of,
        inverse_propensities=inverse_propensity(
            dataset.train.labels_of, a=dataset.propensity.a, b=dataset.propensity.b
        ),
        filtered=test.filtered,
    )
    judged = judge(ranked, test.labels_of, filtered=test.filtered)
    segments = macro_f1_by_segment(
        judged, train_frequency=label_frequency(dataset.train.labels_of), k=5
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
    return result, row_metrics(judged)


def row_metrics(judged: Judged) -> NDArray[np.float64]:
    """Each row's P@1, P@5 and R@100 in [0, 1], [n, 3]."""
    hits = judged.hits
    return np.stack(
        [
            hits[:, :1].sum(axis=1) / 1.0,
            hits[:, :5].sum(axis=1) / 5.0,
            hits[:, :DEEPEST].sum(axis=1) / judged.sizes,
        ],
        axis=1,
    )


def ranked_labels(dataset: Dataset) -> int:
    """How many labels a system must rank a row, so that 100 remain when filtered ones are gone."""
    return DEEPEST + int(np.diff(dataset.test.filtered.indptr).max(initial=0))


def write(results: Results, folder: Path) -> None:
    """Write both files into a folder, which may hold other files."""
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
        raise InvalidData(path, f"this build reads {VERSION}", field="version")
    try:
        document["results"] = tuple(Result(**one) for one in document["results"])
        document["history"] = tuple(Check(**one) for one in document["history"])
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
