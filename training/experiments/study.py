"""Vectors of a data set and rows that the encoder did not train on, for experiments on the memory.

Decisions are made on the held-out training rows; the test rows' figures are reported beside them.

Shapes: N instances of the memory, L labels, n queries, d dimensions, b retrieved keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.index.exact import exact_search
from service.core.index.protocol import RowFilter
from service.core.types import Floats, Role
from training.checkpoints.choices import UNCHOSEN, Choices, read_choices
from training.checkpoints.run_json import BEST, read_run_on
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import with_relevance
from training.datasets.propensity import inverse_propensity
from training.datasets.training_pairs import TrainingPairs
from training.evaluation.encode_texts import encode_texts, label_keys
from training.evaluation.metrics import evaluate, labels_to_rank
from training.evaluation.prediction import (
    Neighbours,
    OfflineMemory,
    Ranked,
    RetrievedKeys,
    nearest_of_both,
    predict,
)
from training.models.precision import Precision
from training.models.torch_encoder import load_encoder
from training.selection.validation import HELD_OUT_ROWS, Slices, hold_out


@dataclass(frozen=True, kw_only=True, eq=False)
class StudySplit:
    """Instances that a memory may have, and the queries that measure it."""

    instances: Floats  # [N, d]
    labels_of: csr_matrix  # [N, L]
    labels: Floats  # [L, d]
    label_ids: tuple[str, ...]  # [L]
    queries: Floats  # [n, d]
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]
    inverse_propensities: NDArray[np.float64]  # [L]
    choices: Choices

    @cached_property
    def _nearest_labels(self) -> Neighbours:
        """The nearest label keys of each query by column; the same for any instances."""
        return _search(self.labels, self.queries, depth=self.choices.depth)

    def memory(
        self, instances: Floats, labels_of: csr_matrix
    ) -> tuple[OfflineMemory, RetrievedKeys]:
        """A memory with these instance keys [m, d], and what each query retrieves from it."""
        memory = OfflineMemory(
            keys=np.concatenate([instances, self.labels]).astype(np.float16),
            labels_of=labels_of,
            label_ids=self.label_ids,
        )
        similarities, columns = self._nearest_labels
        depth = self.choices.depth
        nearest_instances = _search(instances, self.queries, depth=depth)
        nearest_labels = similarities, np.where(columns < 0, -1, columns + len(instances))
        return memory, RetrievedKeys(
            both=nearest_of_both(nearest_instances, nearest_labels, depth=depth),
            instances=nearest_instances,
            labels=nearest_labels,
        )

    def ranked(
        self, memory: OfflineMemory, retrieved: RetrievedKeys, *, memorization: float
    ) -> Ranked:
        """The labels of each query at one lambda."""
        return predict(
            memory,
            retrieved.voting(memorization, self.choices.depth),
            tau=self.choices.tau,
            memorization=memorization,
            top_k=labels_to_rank(self.filtered),
            order=memory.label_order,
        ).labels

    def measure(self, ranked: Ranked) -> dict[str, float]:
        """Metrics in percent."""
        return evaluate(
            ranked,
            self.positives,
            inverse_propensities=self.inverse_propensities,
            filtered=self.filtered,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """A data set as one encoder's vectors."""

    name: str
    dataset: Dataset
    slices: Slices
    choices: Choices
    instances: Floats = field(repr=False)  # of all training rows
    labels: Floats = field(repr=False)
    queries: Floats = field(repr=False)  # of all test rows

    def held_out(self) -> StudySplit:
        """The held-out rows are queries, the kept rows instances."""
        train = self.dataset.train
        kept, held_out = self.slices.kept, self.slices.held_out
        return self._split(
            instances=self.instances[kept],
            labels_of=train.labels_of[kept],
            queries=self.instances[held_out],
            positives=train.labels_of[held_out],
            filtered=train.filtered[held_out],
        )

    def test(self) -> StudySplit:
        """The test rows are queries, all training rows instances."""
        return self._split(
            instances=self.instances,
            labels_of=self.dataset.train.labels_of,
            queries=self.queries,
            positives=self.dataset.test.labels_of,
            filtered=self.dataset.test.filtered,
        )

    def _split(self, *, labels_of: csr_matrix, **parts: Any) -> StudySplit:
        propensity = self.dataset.propensity
        return StudySplit(
            labels_of=labels_of,
            labels=self.labels,
            label_ids=self.dataset.labels.uids,
            inverse_propensities=inverse_propensity(labels_of, a=propensity.a, b=propensity.b),
            choices=self.choices,
            **parts,
        )


def open_study(
    dataset: Dataset,
    *,
    run: Path | None,
    encoder: str | None,
    rows: int | None = None,
    precision: Precision = "fp32",
) -> Study:
    """Encode a data set by a run's best checkpoint, or by an encoder that never saw it.

    The held-out rows of a run are those of its training; for an encoder, `rows` are drawn.

    Raises `InvalidInput` unless either a run or an encoder is given, and for a run of other data
    or without held-out rows.
    """
    if (run is None) == (encoder is None):
        raise InvalidInput("give either --run or --encoder")
    if run is not None and rows is not None:
        raise InvalidInput("--held-out goes with --encoder: a run has its own held-out rows")
    folder = None if run is None else run / BEST
    slices = _slices(dataset, run, rows)
    chosen = read_choices(folder) if folder is not None else None
    dataset = with_relevance(dataset, None if chosen is None else chosen.relevance)
    encode: Callable[..., Floats] = partial(
        encode_texts, load_encoder(str(folder or encoder)), precision=precision
    )
    return Study(
        name=str(run or encoder),
        dataset=dataset,
        slices=slices,
        choices=chosen or UNCHOSEN,
        instances=encode(dataset.train.instances.texts, role=Role.QUERY),
        labels=label_keys(encode, dataset, folder=folder),
        queries=encode(dataset.test.instances.texts, role=Role.QUERY),
    )


def _slices(dataset: Dataset, run: Path | None, rows: int | None) -> Slices:
    """The rows that a run held out, or `rows` drawn ones."""
    count, seed = HELD_OUT_ROWS if rows is None else rows, 0
    if run is not None:
        settings = read_run_on(run, dataset.name)["settings"]
        count, seed = int(settings["validation"]["rows"]), int(settings["seed"])
        if not count:
            raise InvalidInput(f"{run} held no rows out, so nothing can be chosen on them")
    pairs = TrainingPairs(labels_of=dataset.train.labels_of, filtered=dataset.train.filtered)
    return hold_out(pairs.trainable(), total=len(dataset.train), count=count, seed=seed)


def _search(keys: Floats, queries: Floats, *, depth: int) -> Neighbours:
    every_row = RowFilter(start=0, stop=len(keys))
    return exact_search(keys.astype(np.float16), queries, count=depth, row_filter=every_row)
