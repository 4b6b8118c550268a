"""The held-out training rows, on which early stopping, lambda and b are chosen.

Shapes: N training rows, n of them held out, L labels, d dimensions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass as settings
from scipy.sparse import csr_matrix

from service.core.config import STRICT, Count, Natural, Share
from service.core.errors import InvalidConfig
from service.core.types import Floats, Rows
from training.datasets.dataset import Dataset
from training.datasets.propensity import inverse_propensity
from training.datasets.training_pairs import TrainingPairs
from training.evaluation.metrics import (
    evaluate,
    labels_to_rank,
    ranking_outcome,
    unfiltered_positives,
)
from training.evaluation.prediction import (
    OfflineMemory,
    Ranked,
    RetrievedKeys,
    predict,
    retrieve,
)
from training.evaluation.results import row_metrics

HELD_OUT_ROWS = 1_000  # for an encoder that no run trained


@settings(frozen=True, kw_only=True, config=STRICT)
class ValidationSettings:
    """`rows` of the training split are held out and scored every `every` steps.

    With `checks` they are scored so many times, equally far apart, in place of every `every` steps.
    With `untrained` the encoder competes before its first step, too. The best checkpoint has the
    highest mean of `metrics`; training ends when `patience` checks in a row bring no better one (0:
    never). With `rows = 0` nothing is held out, the last is kept. Each check tries all of `mixing`,
    see `training.models.wise_ft`, and keeps the best; 1 is what trains. `labels` is the share of
    labels whose clicks do not train, so that they are novel: how novel labels are represented is
    chosen on them. Rows are `drawn` by their numbers or by a hash of their texts: then a later run
    on more data holds out rows that an earlier one did not train on either.
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


SAMPLED = 16_384  # texts of a large memory, by which the mixing with the first weights is chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class Slices:
    """Training rows: `kept` ones train and are instances of the memory, `held_out` ones measure."""

    kept: Rows
    held_out: Rows


def hold_out(
    candidates: Rows, *, total: int, count: int, seed: int, texts: Sequence[str] | None = None
) -> Slices:
    """Draw `count` rows of `candidates` from `total` training rows.

    With `texts` [N] those of the smallest hash of seed and text are drawn, so that of two data sets
    which share most rows nearly the same rows are held out. Raises `InvalidConfig` where fewer than
    half would be left to train on.
    """
    if 2 * count > len(candidates):
        raise InvalidConfig(
            f"validation.rows: {count} of {len(candidates)} labelled rows are too many;"
            " at most half can be held out"
        )
    if texts is None:
        order = np.random.default_rng([seed, 4]).permutation(candidates)
    else:
        order = candidates[np.argsort([_hash(seed, texts[row]) for row in candidates.tolist()])]
    held_out = np.sort(order[:count])
    return Slices(kept=np.setdiff1d(np.arange(total), held_out), held_out=held_out)


def _hash(seed: int, text: str) -> int:
    """Another number than that which draws the test split (`is_test`)."""
    digest = hashlib.sha256(f"held out {seed}\0{text}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def hidden_labels(dataset: Dataset, *, share: float, seed: int) -> Rows:
    """A random share of the labels that have training pairs, as ascending columns."""
    pairs = TrainingPairs(labels_of=dataset.train.labels_of, filtered=dataset.train.filtered)
    clicked = np.unique(pairs.drawable.indices).astype(np.int64)
    drawn = np.random.default_rng([seed, 10]).permutation(clicked)
    return np.sort(drawn[: round(share * len(clicked))])


def default_slices(labels_of: csr_matrix, filtered: csr_matrix) -> Slices:
    """The slices for an encoder that trains elsewhere: 1,000 held-out rows, at most a fifth."""
    candidates = TrainingPairs(labels_of=labels_of, filtered=filtered).trainable()
    count = min(HELD_OUT_ROWS, len(candidates) // 5)
    return hold_out(candidates, total=labels_of.shape[0], count=count, seed=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutRetrieval:
    """What the held-out rows retrieve from a memory of the kept rows and all labels."""

    rows_of_training: Rows  # [n], their numbers
    memory: OfflineMemory
    retrieved: RetrievedKeys
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]
    inverse_propensities: NDArray[np.float64]  # [L]

    def metrics(self, *, tau: float, memorization: float, depth: int) -> dict[str, float]:
        """Metrics in percent; `depth` is at most what was retrieved."""
        return self.measure(self._ranked(tau=tau, memorization=memorization, depth=depth))

    def measure(self, ranked: Ranked) -> dict[str, float]:
        """Metrics in percent of these labels [n, k], however they were ranked."""
        return evaluate(
            ranked,
            self.positives,
            inverse_propensities=self.inverse_propensities,
            filtered=self.filtered,
        )

    def rows(self, *, tau: float, memorization: float, depth: int) -> NDArray[np.float64]:
        """P@1, P@5 and R@100 in [0, 1] of each row with a label that counts, [m, 3]."""
        return self.rows_of(self._ranked(tau=tau, memorization=memorization, depth=depth))

    def rows_of(self, ranked: Ranked) -> NDArray[np.float64]:
        """The same of these labels [n, k], however they were ranked."""
        return row_metrics(ranking_outcome(ranked, self.positives, filtered=self.filtered))

    def counted(self) -> Rows:
        """The numbers of the training rows that `rows` measures, [m]."""
        positives = unfiltered_positives(self.positives, self.filtered)
        counted: Rows = self.rows_of_training[np.diff(positives.indptr) > 0]
        return counted

    def _ranked(self, *, tau: float, memorization: float, depth: int) -> Ranked:
        return predict(
            self.memory,
            self.retrieved.voting(memorization, depth),
            tau=tau,
            memorization=memorization,
            top_k=labels_to_rank(self.filtered),
            order=self.memory.label_order,
        ).labels


def retrieve_held_out(
    dataset: Dataset, slices: Slices, instances: Floats, labels: Floats, *, depth: int
) -> HeldOutRetrieval:
    """Retrieve for the held-out rows, from unit vectors of all training rows and labels."""
    train = dataset.train
    kept, held_out = slices.kept, slices.held_out
    memory = OfflineMemory(
        keys=np.concatenate([instances[kept], labels]).astype(np.float16),
        labels_of=train.labels_of[kept],
        label_ids=dataset.labels.uids,
    )
    return HeldOutRetrieval(
        rows_of_training=held_out,
        memory=memory,
        retrieved=retrieve(memory, instances[held_out], depth=depth),
        positives=train.labels_of[held_out],
        filtered=train.filtered[held_out],
        inverse_propensities=inverse_propensity(
            train.labels_of[kept], a=dataset.propensity.a, b=dataset.propensity.b
        ),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Validation:
    """Measures an encoder on the held-out rows; its memory are the kept rows and all labels."""

    dataset: Dataset
    slices: Slices
    settings: ValidationSettings
    tau: float
    hidden: Rows = field(default_factory=lambda: np.zeros(0, np.int64))  # hidden labels

    def retrieve(self, instances: Floats, labels: Floats, *, depth: int) -> HeldOutRetrieval:
        """`retrieve_held_out` with this data set and these slices."""
        return retrieve_held_out(self.dataset, self.slices, instances, labels, depth=depth)

    def scores(self, instances: Floats, labels: Floats) -> dict[float, dict[str, float]]:
        """Metrics in percent by lambda, from unit vectors of all training rows and labels."""
        depth = self.settings.depth
        held_out = self.retrieve(instances, labels, depth=depth)
        return {
            memorization: held_out.metrics(tau=self.tau, memorization=memorization, depth=depth)
            for memorization in self.settings.memorization
        }


def criterion(scores: Mapping[float, Mapping[str, float]], metrics: Sequence[str]) -> float:
    """The mean of `metrics` at the best lambda: the number that the best checkpoint maximises.

    Raises `InvalidConfig` for a metric that is not measured.
    """
    for name in metrics:
        if any(name not in table for table in scores.values()):
            known = ", ".join(next(iter(scores.values())))
            raise InvalidConfig(f"validation.metrics: {name!r} is not one of {known}")
    return max(float(np.mean([table[name] for name in metrics])) for table in scores.values())
