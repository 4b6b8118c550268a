"""The best answers of one memory to test rows, and whether another memory's answers are better.

| file                    | content                                                         |
|-------------------------|-----------------------------------------------------------------|
| `untrained.safetensors` | the answers of the untrained encoder's memory, in a run's folder |

`train` and `fit` keep the file when they encode the untrained memory anyway, so it costs only the
encoding of the queries. `score` compares a run with it. It influences no choice.

Shapes: N test rows, m of them answered, L labels, k = `TOP` answers per row, d dimensions. In
`keep_untrained`, N is the number of training rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData
from service.core.files.atomic import write_file
from service.core.types import Bools, Floats, Rows
from training.checkpoints.choices import Choices
from training.datasets.dataset import Dataset, Split
from training.datasets.pair_weights import with_relevance
from training.evaluation.metrics import (
    hits,
    labels_to_rank,
    unfiltered_first,
    unfiltered_positives,
)
from training.evaluation.prediction import Neighbours, OfflineMemory, retrieve

FILE = "untrained.safetensors"
TOP = 5
MOST_ROWS = 20_000  # bounds the cost on millions of test rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """A memory's answers: the best labels of the answered test rows, without filtered pairs."""

    encoder: str  # the encoder's name
    choices: Choices
    rows: Rows  # [m] numbers of the test rows, in the order in which they were drawn
    labels: NDArray[np.int32]  # [m, k], -1 if nothing is left
    scores: NDArray[np.float32]  # [m, k]

    def right(self, test: Split) -> Bools:
        """Return which answers are correct, [m, k]."""
        right: Bools = hits(self.labels, positives_of(test)[self.rows])
        return right


def positives_of(test: Split) -> csr_matrix:
    """The unfiltered positive pairs of the test split, [N, L]."""
    return unfiltered_positives(test.labels_of, test.filtered)


def drawn_rows(test: Split, *, seed: int) -> Rows:
    """The test rows to answer, [m]: at most `MOST_ROWS` random rows with an unfiltered label."""
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
    ranked = memory.ranked(retrieved, choices, top_k=labels_to_rank(filtered, deepest=TOP))
    places = unfiltered_first(ranked.labels, filtered)[:, :TOP]
    labels = np.where(places < 0, -1, np.take_along_axis(ranked.labels, places, axis=1))
    scores = np.where(places < 0, 0.0, np.take_along_axis(ranked.scores, places, axis=1))
    return Answers(
        encoder=encoder,
        choices=choices,
        rows=rows,
        labels=labels.astype(np.int32),
        scores=scores.astype(np.float32),
    )


def verdicts(ours: Bools, theirs: Bools) -> NDArray[np.int64]:
    """Return [m]: 1 if `ours` [m, k] is better than `theirs` [m, k], -1 if worse, otherwise 0.

    Both masks say which answers are correct. More correct answers are better. With equally many,
    the smaller sum of their ranks is better.
    """
    more = ours.sum(axis=1) - theirs.sum(axis=1)
    places = np.arange(ours.shape[1])
    higher = theirs @ places - ours @ places
    return np.sign(np.where(more != 0, more, higher)).astype(np.int64)


def write_untrained(answers: Answers, dataset: Dataset, run: Path) -> None:
    """Write the untrained encoder's answers into a run's folder."""
    from safetensors.numpy import save  # in the extra `training`; `data` works without it

    arrays = {"rows": answers.rows, "labels": answers.labels, "scores": answers.scores}
    facts = {
        "encoder": answers.encoder,
        "choices": orjson.dumps(asdict(answers.choices)).decode(),
        "dataset": digest_of(dataset),
    }
    write_file(run / FILE, save(arrays, metadata=facts))


def read_untrained(run: Path, dataset: Dataset) -> Answers | None:
    """The untrained encoder's answers in a run's folder; None if there are none for this data set.

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
        raise InvalidData(path, "is damaged; remove it, or train the run again") from error


def digest_of(dataset: Dataset) -> str:
    """SHA-256 of a data set's texts: only answers for the same texts can be compared."""
    digest = hashlib.sha256()
    for texts in (dataset.train.instances, dataset.test.instances, dataset.labels):
        for text in texts.texts:
            digest.update(text.encode() + b"\0")
        digest.update(b"\1")
    return digest.hexdigest()


def keep_untrained(
    dataset: Dataset,
    run: Path,
    *,
    encoder: str,
    instances: Floats,
    labels: Floats,
    queries: tuple[Rows, Floats] | None,
    choices: Choices,
) -> None:
    """Write the untrained encoder's answers to `queries` (from `encoded_rows`) into a run's folder.

    `instances` [N, d] and `labels` [L, d] are unit vectors of the untrained encoder `encoder`.
    """
    if queries is None:
        return
    rows, vectors = queries
    memory = OfflineMemory.of_training(
        with_relevance(dataset, choices.relevance), instances, labels
    )
    texts = [dataset.test.instances.texts[row] for row in rows.tolist()]
    retrieved = retrieve(memory, vectors, depth=choices.depth, texts=texts)
    answers = best_answers(
        memory,
        retrieved.of_choices(choices),
        dataset.test,
        rows,
        choices=choices,
        encoder=encoder,
    )
    write_untrained(answers, dataset, run)


def encoded_rows(
    dataset: Dataset, *, seed: int, encode: Callable[[Sequence[str]], Floats]
) -> tuple[Rows, Floats] | None:
    """The test rows to answer [m] and their vectors [m, d]; None if there are no such rows."""
    rows = drawn_rows(dataset.test, seed=seed)
    if not len(rows):
        return None
    texts = dataset.test.instances.texts
    return rows, encode([texts[row] for row in rows.tolist()])
