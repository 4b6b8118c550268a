"""Every way of prediction over one encoder's vectors: Tables 4, 5 and 8 and Figure 3 of RAE-XMC.

Shapes: N training rows, L labels, n test rows, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.core.types import Floats, Role
from training.checkpoints.choices import UNCHOSEN, Choices, read_choices
from training.datasets.dataset import Dataset
from training.evaluation.encode_texts import encode_texts, label_keys
from training.evaluation.prediction import Keys, Retrieved, predict, predict_separately, retrieve
from training.evaluation.results import Result, measured, ranked_labels
from training.models.precision import Precision
from training.models.torch_encoder import load_encoder
from training.selection.memory_choices import DEPTHS as CHOOSABLE
from training.selection.memory_choices import choose_on
from training.selection.validation import Slices, ValidationSettings, ask, default_slices

MEMORIZATIONS = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # Table 8
DEPTHS = (10, 25, 50, 100, 200, 400)  # Figure 3
SEPARATE = (0.3, 0.5, 0.7)  # Table 4; at 0 and 1 both ways are one
Measured = tuple[Result, NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A system and its results, the chosen one first."""

    choices: Choices
    found: list[Measured]
    held_out_rows: int  # that it was chosen on


def score_encoder(
    name: str,
    dataset: Dataset,
    *,
    folder: Path | None,
    slices: Slices | None = None,
    precision: Precision = "fp32",
) -> Scored:
    """Measure an encoder; `folder` is a run's, which may hold choices and classifiers.

    Where no choices are at hand they are made on `slices`, training rows that it never saw.
    """
    choices = read_choices(folder) if folder is not None else None
    encoder = load_encoder(name)
    encode = partial(encode_texts, encoder, precision=precision)
    instances = encode(dataset.train.instances.texts, role=Role.QUERY)
    queries = encode(dataset.test.instances.texts, role=Role.QUERY)
    labels = label_keys(encode, dataset, folder=folder)
    train, held = dataset.train, slices
    if choices is None:
        held = held or default_slices(train.labels_of, train.filtered)
        choices = choices_for(dataset, instances, labels, slices=held)
    keys = Keys(
        keys=np.concatenate([instances, labels]).astype(np.float16),
        labels_of=dataset.train.labels_of,
        uids=dataset.labels.uids,
    )
    retrieved = retrieve(keys, queries, depth=max(DEPTHS))
    return Scored(
        choices=choices,
        found=sweep(keys, retrieved, dataset, choices),
        held_out_rows=len(held.held_out) if held is not None else 0,
    )


def choices_for(dataset: Dataset, instances: Floats, labels: Floats, *, slices: Slices) -> Choices:
    """What is best on held-out rows, so that any encoder is asked as well as our own are."""
    if not len(slices.held_out):
        return UNCHOSEN
    asked = ask(dataset, slices, instances, labels, depth=max(*CHOOSABLE, UNCHOSEN.depth))
    return choose_on(asked, UNCHOSEN, metrics=ValidationSettings().metrics)


def sweep(keys: Keys, retrieved: Retrieved, dataset: Dataset, choices: Choices) -> list[Measured]:
    """The chosen prediction, then all lambdas, all depths, and Eq. 11."""
    top_k = ranked_labels(dataset)

    def joint(
        memorization: float, depth: int, *, chosen: bool = False
    ) -> tuple[Result, NDArray[np.float64]]:
        ranked = predict(
            keys,
            retrieved.voting(memorization, depth),
            tau=choices.tau,
            memorization=memorization,
            top_k=top_k,
        )
        return measured(
            dataset,
            ranked,
            method=METHODS.get(memorization, "memory"),
            memorization=memorization,
            depth=depth,
            tau=choices.tau,
            chosen=chosen,
        )

    found = [joint(choices.memorization, choices.depth, chosen=True)]
    found += [joint(memorization, choices.depth) for memorization in MEMORIZATIONS]
    found += [joint(choices.memorization, depth) for depth in DEPTHS if depth != choices.depth]
    for memorization in SEPARATE:
        ranked = predict_separately(
            keys,
            retrieved.voting(1.0, choices.depth),
            retrieved.voting(0.0, choices.depth),
            tau=choices.tau,
            memorization=memorization,
            top_k=top_k,
        )
        found.append(
            measured(
                dataset,
                ranked,
                method="separate",
                memorization=memorization,
                depth=choices.depth,
                tau=choices.tau,
            )
        )
    return found


METHODS = {0.0: "labels only", 1.0: "instances only"}
