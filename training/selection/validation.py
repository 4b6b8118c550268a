"""The held-out training rows, on which checkpoint, lambda and b are chosen.

Shapes: N training rows, n of them held out, L labels, d dimensions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass as settings
from scipy.sparse import csr_matrix

from service.core.bundle import ranges
from service.core.config import STRICT, Count, Natural, Share
from service.core.errors import InvalidConfig
from service.core.types import Bools, Floats, Halves, Rows
from training.checkpoints.choices import UNCHOSEN, Choices
from training.datasets.dataset import Dataset
from training.datasets.training_pairs import TrainingPairs
from training.evaluation.known_queries import TEN, KnownQueries
from training.evaluation.metrics import (
    evaluate,
    labels_to_rank,
    ranking_outcome,
    row_metrics,
    unfiltered_positives,
)
from training.evaluation.prediction import OfflineMemory, Ranked, RetrievedKeys, retrieve

RowMetrics = NDArray[np.float64]  # [n, 3]: P@1, P@5 and R@100 in [0, 1]
HELD_OUT_ROWS = 1_000  # for an encoder that no run of ours has trained


@settings(frozen=True, kw_only=True, config=STRICT)
class ValidationSettings:
    """Settings of validation on held-out rows.

    `rows` training rows are held out and scored every `every` steps or, if `checks` is given, that
    many times at equal distances; with `untrained` also before the first step. The best checkpoint
    has the highest mean of `metrics`. Training ends when `patience` checks in a row bring no better
    one (0: never). With `rows = 0` nothing is held out and the last checkpoint is kept. Each check
    tries all values of `mixing`, see `training.models.wise_ft`, and keeps the best; 1 is the
    trained encoder alone. `labels` is the share of labels whose clicks are left out of training, to
    choose on them how novel labels are represented. Rows are `drawn` by number or by a hash of
    their texts; by hash, a later run on more data holds out rows that an earlier run held out too.
    After training, all `words` are tried as the weight of shared words in the memory; at 0, only
    codes and posted rows are found by words. Then all `hubs` are tried as the share of a key's
    hubness that is subtracted.
    """

    rows: Natural = 1_000
    drawn: Literal["numbers", "texts"] = "numbers"
    labels: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0
    every: Count = 250
    checks: Natural = 0
    untrained: bool = True
    patience: Natural = 0
    depth: Count = 200
    memorization: tuple[Share, ...] = (0.0, 0.5, 1.0)
    metrics: tuple[str, ...] = ("P@1", "P@5", "R@100", "PSP@5")
    mixing: Annotated[tuple[Share, ...], Field(min_length=1)] = (1.0,)
    words: Annotated[tuple[ranges.WordShare, ...], Field(min_length=1)] = (0.0,)
    hubs: Annotated[tuple[Share, ...], Field(min_length=1)] = (0.0,)


SAMPLED = 16_384  # texts of a large memory on which `mixing` is chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class Slices:
    """Training rows: `kept` rows train and are instances of the memory, `held_out` rows measure."""

    kept: Rows
    held_out: Rows


def hold_out(
    candidates: Rows,
    *,
    total: int,
    count: int,
    seed: int,
    texts: Sequence[str] | None = None,
    unseen: Bools | None = None,
) -> Slices:
    """Draw `count` rows of `candidates` from `total` training rows.

    With `texts` [N], rows with the smallest hash of seed and text are drawn, so two data sets that
    share most rows hold out nearly the same ones. `unseen` [N] marks the rows that the first
    encoder has not trained on. Only these can be held out: all of them if there are fewer than
    `count`. Raises `InvalidConfig` if fewer than half would be left to train on, and if the encoder
    has seen every candidate.
    """
    if 2 * count > len(candidates):
        raise InvalidConfig(
            f"validation.rows: {count} of {len(candidates)} labelled rows are too many;"
            " at most half can be held out"
        )
    if unseen is not None:
        candidates = candidates[unseen[candidates]]
    if count and not len(candidates):
        raise InvalidConfig(
            "validation.rows: the encoder that the run starts from has trained on every labeled"
            " row, so none can measure it; start from the encoder that it began with, add rows, or"
            " hold none out (validation.rows=0)"
        )
    if texts is None:
        order = np.random.default_rng([seed, 4]).permutation(candidates)
    else:
        order = candidates[np.argsort([_hash(seed, texts[row]) for row in candidates.tolist()])]
    held_out = np.sort(order[:count])
    return Slices(kept=np.setdiff1d(np.arange(total), held_out), held_out=held_out)


def _hash(seed: int, text: str) -> int:
    """A hash that is independent of the one that draws the test split (`is_test`)."""
    digest = hashlib.sha256(f"held out {seed}\0{text}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def hidden_labels(dataset: Dataset, *, share: float, seed: int) -> Rows:
    """A random share of the labels that have training pairs, as ascending columns."""
    pairs = TrainingPairs(labels_of=dataset.train.labels_of, filtered=dataset.train.filtered)
    clicked = np.unique(pairs.drawable.indices).astype(np.int64)
    drawn = np.random.default_rng([seed, 10]).permutation(clicked)
    return np.sort(drawn[: round(share * len(clicked))])


def default_slices(
    labels_of: csr_matrix, filtered: csr_matrix, *, unseen: Bools | None = None
) -> Slices:
    """The slices for an encoder trained elsewhere: 1,000 held-out rows, at most a fifth of all.

    Only rows that are `unseen` [N] by the encoder are held out; None stands for all.
    """
    candidates = TrainingPairs(labels_of=labels_of, filtered=filtered).trainable()
    count = min(HELD_OUT_ROWS, len(candidates) // 5)
    if unseen is not None:
        count = min(count, int(np.count_nonzero(unseen[candidates])))
    return hold_out(
        candidates, total=labels_of.shape[0], count=count, seed=0, unseen=unseen if count else None
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutRetrieval:
    """The keys that held-out rows retrieve from a memory of the kept rows and all labels.

    `known` are kept rows, which are asked with their own row in the memory.
    """

    rows_of_training: Rows  # [n] numbers of the held-out rows
    memory: OfflineMemory
    retrieved: RetrievedKeys
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]
    inverse_propensities: NDArray[np.float64]  # [L]
    known: KnownQueries

    def metrics(self, choices: Choices) -> dict[str, float]:
        """Return the metrics in percent; b is limited to the number of retrieved keys."""
        return self.measure(self._ranked(choices))

    def measure(self, ranked: Ranked) -> dict[str, float]:
        """Return the metrics in percent of these ranked labels [n, k]."""
        return evaluate(
            ranked,
            self.positives,
            inverse_propensities=self.inverse_propensities,
            filtered=self.filtered,
        )

    def known_metrics(self, choices: Choices) -> dict[str, float]:
        """Return the metrics of known queries in percent."""
        top_k = labels_to_rank(self.known.filtered, deepest=TEN)
        retrieved = self._known_retrieved.of_choices(choices)
        return self.known.measure(self.memory.ranked(retrieved, choices, top_k=top_k).labels)

    @cached_property
    def _known_retrieved(self) -> RetrievedKeys:
        memory, rows = self.memory, self.known.rows
        texts = memory.instance_texts
        return retrieve(
            memory,
            memory.keys[rows].astype(np.float32),
            depth=self.retrieved.both[1].shape[1],
            texts=[texts[row] for row in rows.tolist()] if texts else None,
        )

    def rows(self, choices: Choices) -> RowMetrics:
        """Return the metrics of each row with an unfiltered label."""
        return self.rows_of(self._ranked(choices))

    def rows_of(self, ranked: Ranked) -> RowMetrics:
        """Return each row's metrics for these ranked labels [n, k]."""
        return row_metrics(ranking_outcome(ranked, self.positives, filtered=self.filtered))

    def counted(self) -> Rows:
        """The numbers of the training rows that `rows` measures, [m]."""
        positives = unfiltered_positives(self.positives, self.filtered)
        counted: Rows = self.rows_of_training[np.diff(positives.indptr) > 0]
        return counted

    def _ranked(self, choices: Choices) -> Ranked:
        retrieved = self.retrieved.of_choices(choices)
        return self.memory.ranked(retrieved, choices, top_k=labels_to_rank(self.filtered)).labels


def retrieve_held_out(
    dataset: Dataset,
    slices: Slices,
    instances: Floats | Halves,
    labels: Floats | Halves,
    *,
    depth: int,
) -> HeldOutRetrieval:
    """Retrieve keys for the held-out rows, from unit vectors of all training rows and labels."""
    train = dataset.train
    kept, held_out, texts = slices.kept, slices.held_out, train.instances.texts
    memory = OfflineMemory.of(
        instances[kept],
        labels,
        labels_of=train.labels_of[kept],
        texts=dataset.labels,
        instance_texts=[texts[row] for row in kept.tolist()],
    )
    return HeldOutRetrieval(
        rows_of_training=held_out,
        memory=memory,
        retrieved=retrieve(
            memory,
            instances[held_out].astype(np.float32),
            depth=depth,
            texts=[texts[row] for row in held_out.tolist()],
        ),
        positives=train.labels_of[held_out],
        filtered=train.filtered[held_out],
        inverse_propensities=dataset.inverse_propensities(memory.labels_of),
        known=KnownQueries.of_rows(memory.labels_of, train.filtered[kept]),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Validation:
    """Measures an encoder on the held-out rows; the memory holds the kept rows and all labels."""

    dataset: Dataset
    slices: Slices
    settings: ValidationSettings
    tau: float
    hidden: Rows = field(default_factory=lambda: np.zeros(0, np.int64))  # columns of hidden labels

    def retrieve(self, instances: Floats, labels: Floats, *, depth: int) -> HeldOutRetrieval:
        """Call `retrieve_held_out` with this data set and these slices."""
        return retrieve_held_out(self.dataset, self.slices, instances, labels, depth=depth)

    def scores(self, instances: Floats, labels: Floats) -> dict[float, dict[str, float]]:
        """Metrics in percent by lambda, from unit vectors of all training rows and labels."""
        depth = self.settings.depth
        held_out = self.retrieve(instances, labels, depth=depth)
        start = replace(UNCHOSEN, tau=self.tau, depth=depth, words=None)
        return {
            memorization: held_out.metrics(replace(start, memorization=memorization))
            for memorization in self.settings.memorization
        }


def criterion(scores: Mapping[float, Mapping[str, float]], metrics: Sequence[str]) -> float:
    """The mean of `metrics` at the best lambda, by which the best checkpoint is chosen.

    Raises `InvalidConfig` for a metric that is not measured.
    """
    for name in metrics:
        if any(name not in table for table in scores.values()):
            known = ", ".join(next(iter(scores.values())))
            raise InvalidConfig(f"validation.metrics: {name!r} is not one of {known}")
    return max(float(np.mean([table[name] for name in metrics])) for table in scores.values())


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A difference of two scores in points, and its standard error over the held-out rows."""

    points: float
    error: float

    @property
    def counts(self) -> bool:
        """Whether the difference is positive and larger than its standard error."""
        return self.points > self.error


def gain_of_rows(points: float, rows: RowMetrics, over: RowMetrics) -> Gain:
    """Return the gain of `points` in the mean of all metrics, with its error from the rows, [n, 3].

    PSP@5 is no mean over rows, so the error is computed from the mean of the other three metrics.
    """
    differences = 100.0 * (rows - over).mean(axis=1)  # [n]
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return Gain(points=points, error=error)
