"""Rows of a data set that a bundle's memory has: test rows say nothing then, and others are known.

A row is in the memory if an instance has its text, up to case and spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from scipy.sparse import csr_matrix

from service.core.bundle.bundle import Bundle
from service.core.bundle.manifest import Manifest
from service.core.errors import InvalidInput
from service.core.prediction.predictor import voting_kind
from service.core.text_identity import identity
from service.core.types import Rows
from training.datasets.dataset import Dataset
from training.evaluation.evaluation import Evaluation
from training.evaluation.known_queries import KnownQueries


def without_seen_rows(dataset: Dataset, bundle: Bundle) -> tuple[Dataset, int]:
    """Leave out test rows that are in the memory; also returns how many they are.

    Nothing is left out unless the bundle was made with test rows: a few texts of some public data
    sets are in both splits.
    """
    split = bundle.manifest.split
    if split is None or not split.test:
        return dataset, 0
    rows = _rows_in_memory(bundle, dataset.test.instances.texts)
    kept = np.setdiff1d(np.arange(len(dataset.test)), rows)
    return replace(dataset, test=dataset.test.select(kept)), len(rows)


def require_held_out(facts: Manifest) -> None:
    """Raise `InvalidInput` for a bundle whose memory has test rows, which are to be asked."""
    split = facts.split
    if split is not None and split.test:
        raise InvalidInput(
            f"{facts.name} has {split.test:,} test rows in its memory, so they cannot"
            " measure it: give a bundle that was made with `export bundle --hold-out-test`"
        )


def known_figures(
    asked: Callable[[Dataset], Evaluation], dataset: Dataset, bundle: Bundle, memorization: float
) -> dict[str, float]:
    """Ask the rows that are in the memory of a bundle; returns metrics and sizes, if there are any.

    `asked` opens the evaluation of a data set's test rows, in the place of which these are put.
    """
    every = dataset.train.followed_by(dataset.test)
    rows = _rows_in_memory(bundle, every.instances.texts)
    known = KnownQueries.of_rows(every.labels_of[rows], csr_matrix(every.filtered[rows]))
    if not len(known.rows):
        return {}
    evaluation = asked(replace(dataset, test=every.select(rows[known.rows])))
    ranked = evaluation.ranked(evaluation.retrieve(voting_kind(memorization)), memorization)
    return {**known.measure(ranked.labels), **known.sizes}


def _rows_in_memory(bundle: Bundle, texts: Sequence[str]) -> Rows:
    """Return the places of texts that are instances of a bundle."""
    wanted: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        wanted.setdefault(identity(text), []).append(place)
    aliases = frozenset(bundle.aliases.tolist())  # instances too, but texts of labels
    found = {
        one
        for row, text in enumerate(bundle.instance_texts)
        if row not in aliases and (one := identity(text)) in wanted
    }
    return np.array(sorted(chain.from_iterable(map(wanted.__getitem__, found))), np.int64)
