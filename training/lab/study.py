"""Measures how much quality smaller memories lose, on rows that the encoder did not train on.

Decisions are based on the held-out training rows; the test rows are measured in addition.

Shapes: N instances of the memory, L labels, n queries, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.files.atomic import write_file
from service.core.prediction.predictor import voting_kind
from service.core.types import Floats, Role, Rows
from training.checkpoints.choices import UNCHOSEN, Choices, read_choices
from training.checkpoints.run_json import BEST
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import with_relevance
from training.datasets.training_pairs import TrainingPairs
from training.evaluation.encode_texts import encode_texts, label_keys
from training.evaluation.metrics import evaluate, labels_to_rank
from training.evaluation.prediction import OfflineMemory
from training.lab.report.plots import Curve, draw
from training.models.precision import Precision
from training.models.torch_encoder import load_encoder
from training.reduction import WholeMemory, representative_rows
from training.reranking.finished_run import open_run
from training.selection.validation import HELD_OUT_ROWS, Slices, ValidationSettings, hold_out

PLOTTED = ("P@1", "P@5", "R@100", "PSP@5")
# One criterion for all choices: the mean that also chooses checkpoint, lambda and b.
CRITERION = ValidationSettings().metrics


@dataclass(frozen=True, kw_only=True, eq=False)
class StudySplit:
    """Instances that a memory may have, and the queries that measure it."""

    instances: Floats  # [N, d]
    labels_of: csr_matrix  # [N, L]
    queries: Floats  # [n, d]
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """A data set encoded by one encoder."""

    name: str
    dataset: Dataset
    slices: Slices
    choices: Choices
    instances: Floats = field(repr=False)  # of all training rows
    labels: Floats = field(repr=False)  # [L, d]
    queries: Floats = field(repr=False)  # of all test rows

    def held_out(self) -> StudySplit:
        """Return the split with held-out rows as queries and kept rows as instances."""
        train = self.dataset.train
        kept, held_out = self.slices.kept, self.slices.held_out
        return StudySplit(
            instances=self.instances[kept],
            labels_of=train.labels_of[kept],
            queries=self.instances[held_out],
            positives=train.labels_of[held_out],
            filtered=train.filtered[held_out],
        )

    def test(self) -> StudySplit:
        """Return the split with test rows as queries and all training rows as instances."""
        return StudySplit(
            instances=self.instances,
            labels_of=self.dataset.train.labels_of,
            queries=self.queries,
            positives=self.dataset.test.labels_of,
            filtered=self.dataset.test.filtered,
        )

    def memory(self, split: StudySplit) -> WholeMemory:
        """Return the whole memory, from which instances are selected; it contains no query."""
        return WholeMemory(instances=split.instances, labels_of=split.labels_of, labels=self.labels)

    def metrics(self, split: StudySplit, rows: Rows) -> dict[str, float]:
        """Measure the split's queries, in percent, with a memory of the instances `rows`."""
        choices = self.choices
        memory = OfflineMemory.of(
            split.instances[rows],
            self.labels,
            labels_of=split.labels_of[rows],
            texts=self.dataset.labels,
        )
        kind = voting_kind(choices.memorization)
        retrieved = memory.search(split.queries, kind=kind, count=choices.depth)
        ranked = memory.ranked(retrieved, choices, top_k=labels_to_rank(split.filtered))
        return evaluate(
            ranked.labels,
            split.positives,
            inverse_propensities=self.dataset.inverse_propensities(split.labels_of),
            filtered=split.filtered,
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

    A run keeps the held-out rows of its training; for an encoder, `rows` are drawn.

    Raises `InvalidInput` unless either a run or an encoder is given, and as
    `training.reranking.finished_run.open_run`.
    """
    if (run is None) == (encoder is None):
        raise InvalidInput("give either --run or --encoder")
    if run is not None and rows is not None:
        raise InvalidInput("--held-out goes with --encoder: a run has its own held-out rows")
    folder = None if run is None else run / BEST
    if run is not None:
        slices = open_run(run, dataset).slices
    else:
        pairs = TrainingPairs(labels_of=dataset.train.labels_of, filtered=dataset.train.filtered)
        count = HELD_OUT_ROWS if rows is None else rows
        slices = hold_out(pairs.trainable(), total=len(dataset.train), count=count, seed=0)
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


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one budget: the size of the test rows' memory, and metrics in percent."""

    share: float
    rows: int
    votes: int
    held_out: dict[str, float]
    test: dict[str, float]

    @property
    def criterion(self) -> float:
        """The mean of the held-out rows' criterion metrics."""
        return float(np.mean([self.held_out[name] for name in CRITERION]))


def measure(study: Study, *, shares: Sequence[float]) -> Iterator[Cost]:
    """Measure every budget, with the lambda and b that were chosen for the whole memory."""
    held_out, test = study.held_out(), study.test()
    for_held_out = representative_rows(study.memory(held_out), shares=shares)
    for share, rows in representative_rows(study.memory(test), shares=shares).items():
        yield Cost(
            share=share,
            rows=len(rows),
            votes=int(test.labels_of[rows].nnz),
            held_out=study.metrics(held_out, for_held_out[share]),
            test=study.metrics(test, rows),
        )


def write_plots(costs: Sequence[Cost], path: Path, *, title: str) -> None:
    """Draw one PNG per metric: for `curve.png`, `curve-P1.png` and so on."""
    for metric in PLOTTED:
        points = sorted((cost.share, cost.test[metric]) for cost in costs)
        picture = draw(
            [Curve(name="representative rows", points=points)],
            title=f"{title}: {metric} by instance keys",
            x="share of the instance keys",
            y=f"{metric}, percent of test rows",
        )
        file = path.with_name(f"{path.stem}-{metric.replace('@', '')}{path.suffix}")
        write_file(file, picture)
