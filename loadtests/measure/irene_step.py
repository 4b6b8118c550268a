"""Training steps of IRENE's second stage on random data, in this process.

Shapes: N instances, L labels, d dimensions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from statistics import median
from time import perf_counter

import numpy as np
import torch
from accelerate import Accelerator
from scipy.sparse import csr_matrix

from loadtests.measure.footprint import resident
from service.core.types import Floats
from training.batches.batch import Batch, draw_batch
from training.batches.settings import BatchSettings
from training.datasets.training_pairs import TrainingPairs
from training.loop.optimizers import make_optimizers
from training.recipes import recipe as recipes
from training.systems.registry import build_system
from training.systems.system import EncodedBatch, Task

DIMENSION, LABELS_PER_INSTANCE = 384, 5


def measure_steps(recipe_name: str, *, labels: int, instances: int, steps: int) -> dict[str, float]:
    """Train `steps` steps on batches of `instances`.

    Returns the number of labels, the median milliseconds of a step (the first is not counted) and
    the process's gigabytes after the steps.
    """
    rng = np.random.default_rng(0)
    recipe = recipes.load(recipe_name)
    labels_of = random_labels(labels, rng)
    label_texts = random_vectors(labels, rng)
    task = Task(
        labels=labels,
        dimension=DIMENSION,
        label_vectors=lambda: label_texts,
        instance_vectors=lambda: random_vectors(labels, rng),
        labels_of=labels_of,
    )
    system = build_system(recipe.system, task, source=recipe_name)
    optimizer = make_optimizers(None, system.head, recipe, sharded=system.sharded_parameters)
    accelerator = Accelerator(cpu=True)
    seconds = []
    for batch in random_batches(labels_of, rng, instances=instances, steps=steps):
        vectors = np.concatenate([random_vectors(instances, rng), label_texts[batch.pool]])
        start = perf_counter()
        system.loss(EncodedBatch.from_vectors(batch, torch.from_numpy(vectors))).backward()
        optimizer.clip(largest_norm=recipe.optimizer.clip, accelerator=accelerator)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(perf_counter() - start)
    return {
        "labels": labels,
        "step_ms": 1_000 * median(seconds[1:]),
        "gigabytes": resident(os.getpid()).total / 1_000,
    }


def random_batches(
    labels_of: csr_matrix, rng: np.random.Generator, *, instances: int, steps: int
) -> Iterator[Batch]:
    """Batches of random instances with the labels that they are trained on."""
    pairs = TrainingPairs(labels_of=labels_of, filtered=csr_matrix(labels_of.shape, dtype=bool))
    settings = BatchSettings(instances=instances)
    for _ in range(steps):
        rows = rng.choice(labels_of.shape[0], size=instances, replace=False)
        yield draw_batch(pairs, rows, settings=settings, hard_negatives=None, rng=rng)


def random_labels(labels: int, rng: np.random.Generator) -> csr_matrix:
    """As many instances as labels, with at most five random labels each, [N, L]."""
    columns = rng.integers(0, labels, labels * LABELS_PER_INSTANCE, dtype=np.int32)
    ends = np.arange(0, len(columns) + 1, LABELS_PER_INSTANCE, dtype=np.int32)
    matrix = csr_matrix((np.ones(len(columns), np.float32), columns, ends), shape=(labels, labels))
    matrix.sum_duplicates()
    return matrix


def random_vectors(count: int, rng: np.random.Generator) -> Floats:
    """Random unit vectors [count, d]."""
    vectors = rng.standard_normal((count, DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors
