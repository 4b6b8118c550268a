"""`python -m loadtests.many_labels`: IRENE's second stage with as many labels as a catalogue has.

Labels, rows and their vectors are drawn by chance: what is measured is the time of a step and the
memory that classifiers, moments and associations take, neither of which asks what texts say. Each
number of labels is measured in a process of its own. Writes many_labels.json and many_labels.md.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import numpy as np
import torch
from accelerate import Accelerator
from cyclopts import App, Parameter
from rich.console import Console
from scipy.sparse import csr_matrix

from loadtests.measure.environment import environment
from loadtests.measure.footprint import resident
from loadtests.results.result_table import Report, Row
from service.command_line import run
from service.core.types import Floats
from training.batches.batch import assemble
from training.batches.settings import BatchSettings
from training.datasets.training_pairs import TrainingPairs
from training.loop.optimizers import make_optimizers
from training.recipes import recipe as recipes
from training.systems import Task, build, encoded

RECIPE = "irene-lf-amazontitles-1.3m"
DIMENSION, INSTANCES, LABELS_A_ROW = 384, 1_600, 5
GOAL_GB = 16.0  # of a machine that is not special

app = App(name="loadtests.many_labels", help=__doc__)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of so many labels: the median of a step, and gigabytes of the process after the steps."""

    labels: int
    step_ms: float
    gigabytes: float


@app.default
def many_labels(
    *,
    out: Path,
    labels: Annotated[
        tuple[int, ...], Parameter(consume_multiple=True, negative=(), help="Numbers of labels.")
    ] = (100_000, 1_000_000),
    steps: Annotated[int, Parameter(help="Steps of each; the first does not count.")] = 8,
) -> int:
    """Measure and report.

    Parameters
    ----------
    out
        Folder for the results.
    """
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
        found = list(pool.map(measure, labels, [steps] * len(labels)))
    report = Report(
        title="Many labels",
        settings={"recipe": RECIPE, "dimension": DIMENSION, "instances": INSTANCES, "steps": steps},
        environment=environment(),
        rows=[
            Row(
                what=f"IRENE's second stage with {one.labels:,} labels",
                goal=f"<= {GOAL_GB:g} GB",
                found=f"{one.gigabytes:.1f} GB, {one.step_ms:,.0f} ms a step",
                met=one.gigabytes <= GOAL_GB,
                figures=asdict(one),
            )
            for one in found
        ],
    )
    report.write(out, "many_labels")
    Console().print(report.table())
    return 0


def measure(labels: int, steps: int) -> Measured:
    """Train some steps in this process."""
    rng = np.random.default_rng(0)
    recipe = recipes.load(RECIPE)
    labels_of = drawn_labels(labels, rng)
    pairs = TrainingPairs(labels_of=labels_of, filtered=csr_matrix(labels_of.shape, dtype=bool))
    texts = drawn_vectors(labels, rng)
    task = Task(
        labels=labels,
        dimension=DIMENSION,
        label_vectors=lambda: texts,
        instance_vectors=lambda: drawn_vectors(labels, rng),
        labels_of=labels_of,
    )
    system = build(recipe.system, task, source=RECIPE)
    optimizer = make_optimizers(None, system.own, recipe, sparse=system.sparse)
    accelerator = Accelerator(cpu=True)
    settings = BatchSettings(instances=INSTANCES)
    seconds = []
    for _ in range(steps):
        rows = rng.choice(labels_of.shape[0], size=INSTANCES, replace=False)
        batch = assemble(pairs, rows, settings=settings, mined=None, rng=rng)
        vectors = np.concatenate([drawn_vectors(INSTANCES, rng), texts[batch.pool]])
        start = perf_counter()
        system.loss(encoded(batch, torch.from_numpy(vectors))).backward()
        optimizer.clip(most=recipe.optimizer.clip, accelerator=accelerator)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(perf_counter() - start)
    return Measured(
        labels=labels,
        step_ms=1_000 * median(seconds[1:]),
        gigabytes=resident(os.getpid()).total / 1_000,
    )


def drawn_labels(labels: int, rng: np.random.Generator) -> csr_matrix:
    """As many rows as labels, with some labels each, [N, L]."""
    columns = rng.integers(0, labels, labels * LABELS_A_ROW, dtype=np.int32)
    ends = np.arange(0, len(columns) + 1, LABELS_A_ROW, dtype=np.int32)
    drawn = csr_matrix((np.ones(len(columns), np.float32), columns, ends), shape=(labels, labels))
    drawn.sum_duplicates()
    return drawn


def drawn_vectors(count: int, rng: np.random.Generator) -> Floats:
    """Unit vectors [count, d]."""
    vectors = rng.standard_normal((count, DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


if __name__ == "__main__":
    sys.exit(run(app))
