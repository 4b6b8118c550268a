"""The teacher's soft labels of all rows that train, made once: the teacher is frozen.

    s(x, l) = <E(x), z_l>                          of a row's text (`instances`), or
    s(x, l) = max over positives p of <z_p, z_l>   of its labels (`labels`)
    P(l | x) = sigmoid((s(x, l) - s_0) / T)

E and z are the teacher's, z_l its label key. s_0 is the median score of true pairs, so that a label
as similar to a row as its own ones are fits it with one half; for `labels` the true pairs are two
labels of one row. LEVER's teacher is trained with a logistic loss for the same end, and its
authors' code has the sigmoid's two numbers as options.

Shapes: N training rows, n of them at a time, L labels, T tail labels, k soft labels of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import expit

from service.core.config import parse
from service.core.errors import InvalidConfig
from service.core.index.protocol import batches
from service.core.types import Floats, Role, Rows
from training.batches.batch import AddedLabels
from training.checkpoints.item_memory import has_item_memory
from training.checkpoints.run_json import BEST, RUN, metadata_of_run, read_run_on
from training.datasets.dataset import Dataset
from training.datasets.metadata_texts import with_metadata
from training.datasets.propensity import label_frequency
from training.datasets.training_pairs import TrainingPairs
from training.evaluation.encode_texts import encode_texts, label_keys
from training.models.torch_encoder import load_encoder
from training.selection.validation import ValidationSettings
from training.systems.soft_labels.settings import SoftLabelSettings

_CHUNK = 512  # rows whose scores of all tail labels are in memory

Scores = Callable[[Rows, Rows], Floats]  # of rows [n] and labels [m], [n, m]


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftLabels:
    """The soft labels of all training rows [N, k], -1 where there are fewer, and P(l | x)."""

    labels: Rows
    probabilities: Floats

    def added(self, settings: SoftLabelSettings) -> AddedLabels:
        """What joins the pool of a batch."""
        return AddedLabels(labels=self.labels.astype(np.int32), sampled=settings.sampled)


def teacher_probability(scores: Floats, *, center: float, temperature: float) -> Floats:
    """P(l | x) = sigmoid((s - s_0) / T), of any shape."""
    probability: Floats = expit((scores - np.float32(center)) / np.float32(temperature))
    return probability


def instance_scores(rows: Rows, labels: Rows, *, instances: Floats, keys: Floats) -> Floats:
    """<E(x), z_l> of rows [n] and labels [m], [n, m]."""
    scores: Floats = instances[rows] @ keys[labels].T
    return scores


def label_scores(rows: Rows, labels: Rows, *, positives: csr_matrix, keys: Floats) -> Floats:
    """max over positives p other than l of <z_p, z_l>, [n, m]; -1 where a row has none."""
    scores = np.full((len(rows), len(labels)), -1.0, np.float32)
    for place, row in enumerate(rows.tolist()):
        own = positives.indices[positives.indptr[row] : positives.indptr[row + 1]]
        pairs = keys[own] @ keys[labels].T  # [positives, m]
        pairs[own[:, None] == labels] = -1.0
        scores[place] = pairs.max(axis=0, initial=-1.0)
    return scores


def soft_labels(
    scores: Scores, pairs: TrainingPairs, rows: Rows, *, settings: SoftLabelSettings, source: str
) -> SoftLabels:
    """The `top` tail labels of each row in `rows`, without its positives and filtered labels.

    Raises `InvalidConfig` where no label has so few rows, or no pair tells what a score means.
    """
    frequency = label_frequency(pairs.drawable[rows])  # [L]
    tail = np.flatnonzero(frequency <= settings.most_rows)
    if not len(tail):
        raise InvalidConfig(
            f"{source}: soft_labels.most_rows is {settings.most_rows}, but every label has more"
            f" training rows, {int(frequency.min())} at least"
        )
    center = float(np.median(_scores_of_true_pairs(scores, pairs, rows, source=source)))
    width = min(settings.top, len(tail))
    labels = np.full((pairs.labels_of.shape[0], width), -1, np.int64)
    probabilities = np.zeros(labels.shape, np.float32)
    known = csr_matrix((pairs.labels_of != 0) + (pairs.filtered != 0))
    for chunk in batches(len(rows), _CHUNK):
        part = rows[chunk]
        found = scores(part, tail)  # [n, T]
        found[known[part][:, tail].toarray()] = -np.inf
        best = np.argpartition(-found, width - 1, axis=1)[:, :width]
        top = np.take_along_axis(found, best, axis=1)
        labels[part] = np.where(np.isfinite(top), tail[best], -1)
        probabilities[part] = teacher_probability(
            top, center=center, temperature=settings.temperature
        )
    return SoftLabels(labels=labels, probabilities=probabilities)


def _scores_of_true_pairs(
    scores: Scores, pairs: TrainingPairs, rows: Rows, *, source: str
) -> Floats:
    """The scores of all pairs of the rows that train, [pairs]."""
    found = list(_pair_scores(scores, pairs, rows))
    true = np.concatenate(found) if found else np.zeros(0, np.float32)
    true = true[true > -1.0]  # which stands for a row without another label
    if not len(true):
        raise InvalidConfig(
            f"{source}: soft_labels.source = 'labels' needs rows with two labels; take 'instances'"
        )
    return true


def _pair_scores(scores: Scores, pairs: TrainingPairs, rows: Rows) -> Iterator[Floats]:
    for row in rows.tolist():
        own = pairs.drawable.indices[pairs.drawable.indptr[row] : pairs.drawable.indptr[row + 1]]
        yield scores(np.array([row]), own.astype(np.int64))[0]


def teachers_soft_labels(
    settings: SoftLabelSettings,
    dataset: Dataset,
    pairs: TrainingPairs,
    rows: Rows,
    *,
    validation: ValidationSettings,
    seed: int,
    source: str,
) -> SoftLabels | None:
    """The soft labels of the recipe's teacher; None where it names none.

    `dataset` has its own texts, without metadata, and `rows` are those that train. `validation` and
    `seed` are the recipe's. Raises `InvalidData` where the teacher is no finished run,
    `InvalidInput` for one on another data set, and `InvalidConfig` for one that trained on the
    held-out rows or reads metadata items, and as `soft_labels`.
    """
    if settings.teacher is None:
        return None
    run = Path(settings.teacher)
    facts = read_run_on(run, dataset.name)
    held_out = facts.get("settings", {})
    if validation.rows and _held_out(validation, seed) != _held_out(
        parse(ValidationSettings, held_out.get("validation", {}), source=str(run / RUN)),
        int(held_out.get("seed", 0)),
    ):
        raise InvalidConfig(
            f"{source}: soft_labels.teacher {run} held out other rows, so it trained on some of"
            " those that this run chooses on: give both the same seed and validation.rows,"
            " validation.drawn and validation.labels"
        )
    if has_item_memory(run / BEST):
        raise InvalidConfig(f"{source}: soft_labels.teacher {run} reads metadata items")
    instances, keys = _vectors(run, with_metadata(dataset, metadata_of_run(facts, run)))
    scores: Scores = partial(instance_scores, instances=instances, keys=keys)
    if settings.source == "labels":
        scores = partial(label_scores, positives=pairs.drawable, keys=keys)
    return soft_labels(scores, pairs, rows, settings=settings, source=source)


def _held_out(validation: ValidationSettings, seed: int) -> tuple[object, ...]:
    return validation.rows, validation.drawn, validation.labels, seed


def _vectors(run: Path, texts: Dataset) -> tuple[Floats, Floats]:
    """The teacher's unit vectors of the training rows [N, d] and its label keys [L, d]."""
    encode = partial(encode_texts, load_encoder(str(run / BEST)))
    instances = encode(texts.train.instances.texts, role=Role.QUERY)
    return instances, label_keys(encode, texts, folder=run / BEST)
