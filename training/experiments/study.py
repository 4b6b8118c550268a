"""Vectors of a data set and rows that the encoder did not train on: what is asked of a memory.

Questions are decided on the held-out training rows and reported beside the test rows.

Shapes: N instances of the memory, L labels, n queries, d dimensions, b retrieved keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.index.exact import exact_search, nearest
from service.core.index.protocol import RowFilter
from service.core.types import Floats, Role, Rows
from training.checkpoints.choices import UNCHOSEN, Choices, read_choices
from training.checkpoints.run_json import BEST, read_run_on
from training.datasets.dataset import Dataset
from training.datasets.propensity import inverse_propensity
from training.datasets.training_pairs import TrainingPairs
from training.evaluation.encode_texts import encode_texts, label_keys
from training.evaluation.metrics import evaluate, judge
from training.evaluation.prediction import Keys, Ranked, Retrieved, predict
from training.evaluation.results import row_metrics
from training.models.precision import Precision
from training.models.torch_encoder import load_encoder
from training.selection.validation import HELD_OUT_ROWS, RANKED, Slices, hold_out


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """A memory and the queries that are asked of it."""

    instances: Floats  # [N, d]
    labels_of: csr_matrix  # [N, L]
    labels: Floats  # [L, d]
    uids: tuple[str, ...]  # [L]
    queries: Floats  # [n, d]
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]
    inverse_propensities: NDArray[np.float64]  # [L]
    choices: Choices

    @property
    def top_k(self) -> int:
        """How many labels to rank, so that 100 remain when filtered ones are gone."""
        return RANKED + int(np.diff(self.filtered.indptr).max(initial=0))

    @cached_property
    def label_keys(self) -> tuple[Floats, Rows]:
        """The nearest label keys of each query and their columns, [n, b]; the same for any X."""
        return _search(self.labels, self.queries, depth=self.choices.depth)

    def memory(self, instances: Floats, labels_of: csr_matrix) -> tuple[Keys, Retrieved]:
        """K = [X; Z] with these instance keys [m, d], and what each query retrieves from it."""
        keys = Keys(
            keys=np.concatenate([instances, self.labels]).astype(np.float16),
            labels_of=labels_of,
            uids=self.uids,
        )
        near = _search(instances, self.queries, depth=self.choices.depth)
        similarities, columns = self.label_keys
        labels = similarities, np.where(columns < 0, -1, columns + len(instances))
        both = nearest(
            np.hstack([near[0], labels[0]]),
            np.hstack([near[1], labels[1]]),
            count=self.choices.depth,
        )
        return keys, Retrieved(both=both, instances=near, labels=labels)

    def ranked(self, keys: Keys, retrieved: Retrieved, *, memorization: float) -> Ranked:
        """The labels of each query at one lambda."""
        return predict(
            keys,
            retrieved.voting(memorization, self.choices.depth),
            tau=self.choices.tau,
            memorization=memorization,
            top_k=self.top_k,
        )

    def measure(self, ranked: Ranked) -> dict[str, float]:
        """Metrics in percent."""
        return evaluate(
            ranked,
            self.positives,
            inverse_propensities=self.inverse_propensities,
            filtered=self.filtered,
        )

    def row_metrics(self, ranked: Ranked) -> NDArray[np.float64]:
        """P@1, P@5 and R@100 of each labelled query, for paired tests."""
        return row_metrics(judge(ranked, self.positives, filtered=self.filtered))


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """An encoder's vectors of a data set."""

    name: str
    dataset: Dataset
    slices: Slices
    choices: Choices
    instances: Floats = field(repr=False)  # of all training rows
    labels: Floats = field(repr=False)
    queries: Floats = field(repr=False)  # of all test rows

    def held_out(self) -> Side:
        """The held-out rows, asked of the kept ones."""
        train = self.dataset.train
        kept, held_out = self.slices.kept, self.slices.held_out
        return self._side(
            instances=self.instances[kept],
            labels_of=train.labels_of[kept],
            queries=self.instances[held_out],
            positives=train.labels_of[held_out],
            filtered=train.filtered[held_out],
        )

    def test(self) -> Side:
        """The test rows, asked of all training rows."""
        return self._side(
            instances=self.instances,
            labels_of=self.dataset.train.labels_of,
            queries=self.queries,
            positives=self.dataset.test.labels_of,
            filtered=self.dataset.test.filtered,
        )

    def _side(self, *, labels_of: csr_matrix, **parts: Any) -> Side:
        propensity = self.dataset.propensity
        return Side(
            labels_of=labels_of,
            labels=self.labels,
            uids=self.dataset.labels.uids,
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

    A run's held-out rows are those of its training; of an encoder, `rows` are drawn.

    Raises `InvalidInput` unless one of both is given, and for a run of other data or without
    held-out rows.
    """
    if (run is None) == (encoder is None):
        raise InvalidInput("give either --run or --encoder")
    folder, seed = None, 0
    if run is not None:
        if rows is not None:
            raise InvalidInput("--held-out goes with --encoder: a run has its own held-out rows")
        folder = run / BEST
        rows, seed = _held_out_by(run, dataset)
    pairs = TrainingPairs(labels_of=dataset.train.labels_of, filtered=dataset.train.filtered)
    slices = hold_out(
        pairs.trainable(),
        total=len(dataset.train),
        count=HELD_OUT_ROWS if rows is None else rows,
        seed=seed,
    )
    chosen = read_choices(folder) if folder is not None else None
    loaded = load_encoder(str(folder or encoder))
    encode = partial(encode_texts, loaded, precision=precision)
    return Study(
        name=str(run or encoder),
        dataset=dataset,
        slices=slices,
        choices=chosen or UNCHOSEN,
        instances=encode(dataset.train.instances.texts, role=Role.QUERY),
        labels=label_keys(encode, dataset, folder=folder),
        queries=encode(dataset.test.instances.texts, role=Role.QUERY),
    )


def _held_out_by(run: Path, dataset: Dataset) -> tuple[int, int]:
    """How many rows a run held out, and by which seed."""
    facts = read_run_on(run, dataset.name)
    rows = int(facts["settings"]["validation"]["rows"])
    if not rows:
        raise InvalidInput(f"{run} held no rows out, so nothing can be chosen on them")
    return rows, int(facts["settings"]["seed"])


def _search(keys: Floats, queries: Floats, *, depth: int) -> tuple[Floats, Rows]:
    row_filter = RowFilter(start=0, stop=len(keys))
    return exact_search(keys.astype(np.float16), queries, count=depth, row_filter=row_filter)
