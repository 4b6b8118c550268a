"""The best answers of one memory to test rows, and whether another memory's answers are better.

| file                    | content                                                         |
|-------------------------|-----------------------------------------------------------------|
| `untrained.safetensors` | the answers of the untrained encoder's memory, in a run's folder |

Shapes: N test rows, m of them answered, L labels, k = `TOP` answers a row.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData
from service.core.files.atomic import write_file
from service.core.prediction.many_queries import RankedLabels
from service.core.types import Bools, Rows
from training.checkpoints.choices import Choices
from training.datasets.dataset import Dataset, Split
from training.evaluation.metrics import hits, labels_to_rank, unfiltered_positives
from training.evaluation.prediction import Neighbours, OfflineMemory, predict

FILE = "untrained.safetensors"
TOP = 5
MOST_ROWS = 20_000  # so that millions of test rows cost little


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """What a memory answers: the best labels of test rows, without their filtered pairs."""

    encoder: str  # its name
    choices: Choices
    rows: Rows  # [m] of the test split, in the order in which they were drawn
    labels: NDArray[np.int32]  # [m, k], -1 where nothing is left
    scores: NDArray[np.float32]  # [m, k]

    def right(self, test: Split) -> Bools:
        """Which answers are right, [m, k]."""
        right: Bools = hits(self.labels, positives_of(test)[self.rows])
        return right


def positives_of(test: Split) -> csr_matrix:
    """The pairs of the test split that count, [N, L]."""
    return unfiltered_positives(test.labels_of, test.filtered)


def drawn_rows(test: Split, *, seed: int) -> Rows:
    """The test rows to answer, [m]: at most `MOST_ROWS` of those with a label that counts."""
    labelled = np.flatnonzero(np.diff(positives_of(test).indptr))
    drawn = np.random.default_rng([seed, 12]).permutation(labelled)[:MOST_ROWS]
    return np.asarray(drawn, np.int64)


def best_answers(
    memory: OfflineMemory,
    retrieved: Neighbours,
    test: Split,
    rows: Rows,
    *,
    choices: Choices,
    encoder: str,
) -> Answers:
    """The best labels of `rows` [m], from the keys that they retrieved from the memory, [m, b]."""
    filtered = test.filtered[rows]
    ranked = predict(
        memory,
        retrieved,
        tau=choices.tau,
        memorization=choices.memorization,
        top_k=labels_to_rank(filtered, deepest=TOP),
        order=memory.label_order,
    )
    labels, scores = _first(ranked, filtered)
    return Answers(encoder=encoder, choices=choices, rows=rows, labels=labels, scores=scores)


def _first(
    ranked: RankedLabels, filtered: csr_matrix
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The first k of the ranked labels that are not filtered, with their scores."""
    removed = hits(ranked.labels, filtered) | (ranked.labels < 0)
    order = np.argsort(removed, axis=1, kind="stable")[:, :TOP]  # kept labels in their order
    is_left = ~np.take_along_axis(removed, order, axis=1)
    labels = np.where(is_left, np.take_along_axis(ranked.labels, order, axis=1), -1)
    scores = np.where(is_left, np.take_along_axis(ranked.scores, order, axis=1), 0.0)
    return labels.astype(np.int32), scores.astype(np.float32)


def verdicts(ours: Bools, theirs: Bools) -> NDArray[np.int64]:
    """1 where `ours` [m, k] is better than `theirs` [m, k], -1 where it is worse, otherwise 0.

    Both say which answers are right. More right answers are better; of as many, those that stand
    higher are: the sum of their places is smaller.
    """
    more = ours.sum(axis=1) - theirs.sum(axis=1)
    places = np.arange(ours.shape[1])
    higher = theirs @ places - ours @ places
    return np.sign(np.where(more != 0, more, higher)).astype(np.int64)


def write_untrained(answers: Answers, dataset: Dataset, run: Path) -> None:
    """Write the untrained encoder's answers into a run's folder."""
    from safetensors.numpy import save  # of the extra training: `data` works without it

    arrays = {"rows": answers.rows, "labels": answers.labels, "scores": answers.scores}
    facts = {
        "encoder": answers.encoder,
        "choices": orjson.dumps(asdict(answers.choices)).decode(),
        "dataset": digest_of(dataset),
    }
    write_file(run / FILE, save(arrays, metadata=facts))


def read_untrained(run: Path, dataset: Dataset) -> Answers | None:
    """The untrained encoder's answers in a run's folder; None where there are none to these data.

    Raises `InvalidData` for a damaged file.
    """
    from safetensors import SafetensorError, safe_open

    path = run / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata()
            if facts["dataset"] != digest_of(dataset):
                return None
            return Answers(
                encoder=facts["encoder"],
                choices=Choices(**orjson.loads(facts["choices"])),
                rows=file.get_tensor("rows"),
                labels=file.get_tensor("labels"),
                scores=file.get_tensor("scores"),
            )
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InvalidData(
            path, "is damaged; remove it, and `score --untrained` writes it again"
        ) from error


def digest_of(dataset: Dataset) -> str:
    """SHA-256 of a data set's texts: answers to other texts cannot be compared."""
    digest = hashlib.sha256()
    for texts in (dataset.train.instances, dataset.test.instances, dataset.labels):
        for text in texts.texts:
            digest.update(text.encode() + b"\0")
        digest.update(b"\1")
    return digest.hexdigest()
