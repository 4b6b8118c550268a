"""The untrained encoder's answers to test rows, which `score` puts beside those of the trained one.

They are kept when the untrained memory is encoded for `train` or `fit` anyway: only the queries are
encoded in addition. Nothing is chosen by them.

Shapes: N training rows, L labels, m test rows to answer, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from service.core.types import Floats, Rows
from training.checkpoints.choices import Choices
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import with_relevance
from training.evaluation.answers import (
    Answers,
    best_answers,
    drawn_rows,
    read_untrained,
    write_untrained,
)
from training.evaluation.prediction import OfflineMemory, retrieve
from training.experiments.sweeps import open_scoring
from training.models.precision import Precision
from training.progress import Report


def keep_untrained(
    dataset: Dataset,
    run: Path,
    *,
    encoder: str,
    instances: Floats,
    labels: Floats,
    queries: Floats,
    rows: Rows,
    choices: Choices,
) -> None:
    """Write the answers to the test rows `rows` [m] into a run's folder.

    `instances` [N, d], `labels` [L, d] and `queries` [m, d] are unit vectors of the untrained
    encoder of that name.
    """
    train = with_relevance(dataset, choices.relevance).train
    memory = OfflineMemory(
        keys=np.concatenate([instances, labels]).astype(np.float16),
        labels_of=train.labels_of,
        label_ids=dataset.labels.uids,
    )
    retrieved = retrieve(memory, queries, depth=choices.depth)
    answers = best_answers(
        memory,
        retrieved.voting(choices.memorization, choices.depth),
        dataset.test,
        rows,
        choices=choices,
        encoder=encoder,
    )
    write_untrained(answers, dataset, run)


def encoded_rows(
    dataset: Dataset, *, seed: int, encode: Callable[[Sequence[str]], Floats]
) -> tuple[Rows, Floats] | None:
    """The test rows to answer [m] and their vectors [m, d]; None where there are none."""
    rows = drawn_rows(dataset.test, seed=seed)
    if not len(rows):
        return None
    texts = dataset.test.instances.texts
    return rows, encode([texts[row] for row in rows.tolist()])


def answers_beside(
    run: Path,
    dataset: Dataset,
    base: str | None,
    *,
    seed: int,
    precision: Precision,
    report: Report,
) -> Answers | None:
    """The untrained encoder's answers that a run has kept, or those of `base`, which are kept then.

    None where the run has none to these data and `base` is None.
    """
    kept = read_untrained(run, dataset)
    if kept is not None or base is None:
        return kept
    scoring = open_scoring(base, dataset, folder=None, precision=precision, report=report)
    answers = scoring.answers(drawn_rows(dataset.test, seed=seed), encoder=base)
    write_untrained(answers, dataset, run)
    return answers
