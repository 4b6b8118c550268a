"""IRENE's zero-shot and one-shot sets: some labels of a data set are hidden, as if not yet posted.

| in the folder | content                                                                       |
|---------------|-------------------------------------------------------------------------------|
| `seen/`       | a data set: the labels that are left, and the train and test pairs of those   |
| `all/`        | a data set: those labels, then the hidden ones. Its test rows have all their  |
|               | labels; its train rows are the one-shot queries, one for each hidden label    |
| `novel.json`  | fraction and seed, and how many labels are seen and novel                     |

A column of `seen` is the same column of `all`. What trains reads `seen` alone.

Shapes: N training rows, L labels, S of them seen.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from scipy.sparse import csr_matrix

from service.core.config import STRICT
from service.core.errors import InvalidData, InvalidInput
from service.core.files.atomic import new_folder, write_file
from service.core.types import Rows
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Split, Texts
from training.datasets.training_pairs import TrainingPairs

FORMAT, VERSION = "keymatch-novel-split", 1
SEEN, ALL, FILE = "seen", "all", "novel.json"


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Facts:
    """How the split was drawn."""

    format: str
    version: int
    fraction: float
    seed: int
    seen: int
    novel: int


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelSplit:
    """`seen` as it trains; `everything` with the hidden labels after the seen ones."""

    seen: Dataset
    everything: Dataset
    facts: Facts

    @property
    def novel(self) -> Rows:
        """The hidden labels' columns of `everything`."""
        return np.arange(self.facts.seen, self.facts.seen + self.facts.novel)

    def revealed(self) -> list[str]:
        """The one query that is known of each hidden label."""
        train = self.everything.train
        row_of = dict(zip(train.labels_of.indices.tolist(), range(len(train)), strict=True))
        return [train.instances.texts[row_of[column]] for column in self.novel.tolist()]


def split_novel(dataset: Dataset, *, fraction: float, seed: int) -> NovelSplit:
    """Hide a share of the labels (IRENE, appendix: "Datasets creation details").

    Only labels with a training pair that counts are drawn, so that each has a query to reveal; the
    same draw serves zero-shot and one-shot. Training rows whose labels are all hidden are left out.

    Raises `InvalidInput` for a fraction that hides no label, or all.
    """
    if not 0.0 < fraction < 1.0:
        raise InvalidInput(f"fraction must lie between 0 and 1, not {fraction:g}", field="fraction")
    train, total = dataset.train, len(dataset.labels)
    drawable = TrainingPairs(labels_of=train.labels_of, filtered=train.filtered).drawable.tocsc()
    candidates = np.flatnonzero(np.diff(drawable.indptr))
    rng = np.random.default_rng([seed, 7])
    novel = np.sort(rng.permutation(candidates)[: round(fraction * len(candidates))])
    if not len(novel):
        raise InvalidInput(f"fraction {fraction:g} hides none of {len(candidates)} labels")
    seen = np.setdiff1d(np.arange(total), novel)
    left = _of_labels(train, seen)
    rows = np.flatnonzero(np.diff(left.labels_of.indptr))
    if not len(rows):
        raise InvalidInput(f"fraction {fraction:g} leaves no training row")
    queries = [int(rng.choice(_column(drawable, label))) for label in novel.tolist()]
    return NovelSplit(
        seen=replace(
            dataset,
            name=f"{dataset.name}-seen",
            train=_rows(left, rows),
            test=_of_labels(dataset.test, seen),
            labels=_texts(dataset.labels, seen),
            label_metadata=_at(dataset.label_metadata, seen),
        ),
        everything=replace(
            dataset,
            name=f"{dataset.name}-novel",
            train=_one_shot(train, queries, seen=len(seen), total=total),
            test=_of_labels(dataset.test, np.concatenate([seen, novel])),
            labels=_texts(dataset.labels, np.concatenate([seen, novel])),
            label_metadata=_at(dataset.label_metadata, np.concatenate([seen, novel])),
        ),
        facts=Facts(
            format=FORMAT,
            version=VERSION,
            fraction=fraction,
            seed=seed,
            seen=len(seen),
            novel=len(novel),
        ),
    )


def write(split: NovelSplit, folder: Path) -> None:
    """Write a new folder; raises `InvalidData` where it exists."""
    with new_folder(folder) as temporary:
        lf_xmc.write(split.seen, temporary / SEEN)
        lf_xmc.write(split.everything, temporary / ALL)
        document = orjson.dumps(asdict(split.facts), option=orjson.OPT_INDENT_2)
        write_file(temporary / FILE, document + b"\n")


def read(folder: Path) -> NovelSplit:
    """Read what `write` wrote; raises `InvalidData` naming what is wrong."""
    path = folder / FILE
    if not path.is_file():
        raise InvalidData(path, "is missing: `python -m training split novel` writes such folders")
    try:
        facts = TypeAdapter(Facts).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidData(path, f"{where}: {first['msg']}".removeprefix(": ")) from error
    if (facts.format, facts.version) != (FORMAT, VERSION):
        raise InvalidData(path, f"is {facts.format} {facts.version}, not {FORMAT} {VERSION}")
    found = NovelSplit(
        seen=lf_xmc.read(folder / SEEN), everything=lf_xmc.read(folder / ALL), facts=facts
    )
    uids, one_shot = found.everything.labels.uids, found.everything.train.labels_of
    if (len(uids), one_shot.shape[0]) != (facts.seen + facts.novel, facts.novel):
        said = f"{ALL} holds {len(uids)} labels and {one_shot.shape[0]} one-shot queries"
        raise InvalidData(path, said)
    if not np.array_equal(np.sort(one_shot.indices), found.novel):
        raise InvalidData(folder / ALL, "its train rows are not a query for each novel label")
    if uids[: facts.seen] != found.seen.labels.uids:
        raise InvalidData(folder / ALL, f"its first labels are not those of {SEEN}")
    return found


def _of_labels(split: Split, columns: Rows) -> Split:
    return replace(
        split,
        labels_of=csr_matrix(split.labels_of[:, columns]),
        filtered=csr_matrix(split.filtered[:, columns]),
    )


def _rows(split: Split, rows: Rows) -> Split:
    return Split(
        instances=_texts(split.instances, rows),
        labels_of=csr_matrix(split.labels_of[rows]),
        filtered=csr_matrix(split.filtered[rows]),
        metadata_of=_at(split.metadata_of, rows),
    )


def _one_shot(train: Split, queries: list[int], *, seen: int, total: int) -> Split:
    """A row for each hidden label: the query that is revealed, with that label alone."""
    rows, ones = np.arange(len(queries)), np.ones(len(queries), np.float32)
    chosen = np.array(queries)
    texts = tuple(train.instances.texts[row] for row in queries)
    return Split(
        instances=Texts(uids=tuple(f"one-shot-{row}" for row in rows.tolist()), texts=texts),
        labels_of=csr_matrix((ones, (rows, seen + rows)), shape=(len(queries), total)),
        filtered=csr_matrix((len(queries), total), dtype=bool),
        metadata_of=_at(train.metadata_of, chosen),
    )


def _texts(texts: Texts, places: Rows) -> Texts:
    return Texts(
        uids=tuple(texts.uids[place] for place in places.tolist()),
        texts=tuple(texts.texts[place] for place in places.tolist()),
    )


def _at(matrix: csr_matrix | None, rows: Rows) -> csr_matrix | None:
    return None if matrix is None else csr_matrix(matrix[rows])


def _column(matrix: csr_matrix, column: int) -> Rows:
    rows: Rows = matrix.indices[matrix.indptr[column] : matrix.indptr[column + 1]]
    return rows
