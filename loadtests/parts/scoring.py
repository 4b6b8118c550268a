"""`python -m loadtests.parts.scoring`: the time that `training score` takes to retrieve and rank.

It draws unit vectors and labels at random, by default in the shape of a data set of 16,000 test
rows and 90,000 keys. The nearest keys of a random vector share few labels, so a query has about as
many candidates as votes: more work than real data. Encoding is not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import TypeVar

import numpy as np
import orjson
from cyclopts import App
from scipy.sparse import csr_matrix

from service.command_line import open_console, run
from service.core.files.atomic import write_file
from service.core.types import Floats
from training.checkpoints.choices import UNCHOSEN
from training.datasets.dataset import Dataset, Propensity, Split, Texts
from training.evaluation.prediction import OfflineMemory, retrieve
from training.experiments.sweeps import DEPTHS, Scoring

app = App(name="loadtests.parts.scoring", help="Time retrieval and ranking of `training score`.")
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """The time of one stage: on the clock, and of all processors together."""

    clock: float
    processor: float


@app.default
def measure(
    *,
    rows: int = 16_000,
    instances: int = 70_000,
    labels: int = 20_000,
    dimension: int = 384,
    labels_a_row: float = 3.1,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Retrieve and rank all sweeps once, and print the seconds of each stage.

    Parameters
    ----------
    rows
        Test rows.
    instances
        Instance keys.
    labels
        Labels, each with a key.
    dimension
        Of the vectors.
    labels_a_row
        Mean number of labels of an instance and of a test row.
    seed
        Of the random vectors and labels.
    json
        Also write the seconds to this file.
    """
    rng = np.random.default_rng(seed)
    scoring = random_scoring(rng, rows, instances, labels, dimension, labels_a_row)
    depth = max(*DEPTHS, scoring.choices.depth)
    _, search = timed(lambda: retrieve(scoring.memory, scoring.queries, depth=depth))
    results, both = timed(lambda: list(scoring.results()))
    rank = Seconds(clock=both.clock - search.clock, processor=both.processor - search.processor)
    console = open_console()
    for stage, seconds in (("retrieve", search), (f"rank and measure {len(results)} ways", rank)):
        console.print(
            f"{stage}: {seconds.clock:.1f} s, {seconds.processor:.1f} s of processors",
            highlight=False,
        )
    if json is not None:
        document = {"retrieve": vars(search), "rank": vars(rank), "ways": len(results)}
        write_file(json, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def random_scoring(
    rng: np.random.Generator,
    rows: int,
    instances: int,
    labels: int,
    dimension: int,
    labels_a_row: float,
) -> Scoring:
    """A data set without texts whose vectors and labels are drawn at random."""
    ids = tuple(f"label-{label}" for label in range(labels))
    dataset = Dataset(
        name="random",
        labels=Texts(uids=ids, texts=ids),
        train=random_split(rng, instances, labels, labels_a_row),
        test=random_split(rng, rows, labels, labels_a_row),
        propensity=Propensity(a=0.55, b=1.5),
    )
    keys = unit_vectors(rng, instances + labels, dimension).astype(np.float16)
    return Scoring(
        dataset=dataset,
        choices=UNCHOSEN,
        held_out_rows=0,
        memory=OfflineMemory(keys=keys, labels_of=dataset.train.labels_of, label_ids=ids),
        queries=unit_vectors(rng, rows, dimension),
    )


def random_split(rng: np.random.Generator, rows: int, labels: int, labels_a_row: float) -> Split:
    """Rows without texts; each has at least one label."""
    counts = rng.geometric(1.0 / labels_a_row, rows)
    pairs = np.repeat(np.arange(rows), counts), rng.integers(0, labels, counts.sum())
    labels_of = csr_matrix((np.ones(len(pairs[0]), np.float32), pairs), shape=(rows, labels))
    names = tuple(f"row-{row}" for row in range(rows))
    return Split(
        instances=Texts(uids=names, texts=names),
        labels_of=labels_of,
        filtered=csr_matrix((rows, labels), dtype=bool),
    )


def unit_vectors(rng: np.random.Generator, count: int, dimension: int) -> Floats:
    """Random directions [count, dimension]."""
    vectors = rng.standard_normal((count, dimension), np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def timed(work: Callable[[], Value]) -> tuple[Value, Seconds]:
    """What `work` returns and the time it takes."""
    clock, processor = perf_counter(), process_time()
    value = work()
    return value, Seconds(clock=perf_counter() - clock, processor=process_time() - processor)


if __name__ == "__main__":
    sys.exit(run(app))
