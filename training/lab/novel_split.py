"""IRENE's zero-shot and one-shot sets: labels that are hidden in training and posted later.

| in the folder | content                                                                       |
|---------------|-------------------------------------------------------------------------------|
| `seen/`       | a data set: the labels that are not hidden, with their train and test pairs   |
| `all/`        | a data set: the seen labels, then the hidden ones. Test rows have all their   |
|               | labels; train rows are the one-shot queries, one for each hidden label        |
| `novel.json`  | fraction and seed, and the numbers of seen and novel labels                   |

The columns of `seen` come first in `all`. Training reads only `seen`.

Shapes: N training rows, L labels, S of them seen.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from pydantic.dataclasses import dataclass as checked_dataclass
from scipy.sparse import csr_matrix

from service.core.config import STRICT
from service.core.errors import InvalidData, InvalidInput
from service.core.files.atomic import new_folder
from service.core.types import Rows
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Split, Texts, rows_of
from training.datasets.training_pairs import TrainingPairs
from training.documents import checked, read_json, write_json

FORMAT, VERSION = "keymatch-novel-split", 1
SEEN, ALL, FILE = "seen", "all", "novel.json"


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Facts:
    """The content of novel.json: how the split was drawn, and its sizes."""

    format: str
    version: int
    fraction: float
    seed: int
    seen: int
    novel: int


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelSplit:
    """A split data set: `seen` is for training, `everything` has the hidden labels appended."""

    seen: Dataset
    everything: Dataset
    facts: Facts

    @property
    def novel(self) -> Rows:
        """The columns of the hidden labels in `everything`."""
        return np.arange(self.facts.seen, self.facts.seen + self.facts.novel)

    def revealed(self) -> list[str]:
        """The one-shot query of each hidden label."""
        train = self.everything.train
        row_of = dict(zip(train.labels_of.indices.tolist(), range(len(train)), strict=True))
        return [train.instances.texts[row_of[column]] for column in self.novel.tolist()]


def split_novel(dataset: Dataset, *, fraction: float, seed: int) -> NovelSplit:
    """Hide a share of the labels (IRENE, appendix: "Datasets creation details").

    Only labels with an unfiltered training pair can be hidden, because each needs a one-shot query.
    Zero-shot and one-shot hide the same labels. Training rows without a seen label are left out.

    Raises `InvalidInput` for a fraction that hides no label or leaves no training row.
    """
    train, labels = dataset.train, np.arange(len(dataset.labels))
    drawable = TrainingPairs(labels_of=train.labels_of, filtered=train.filtered).drawable.tocsc()
    rng = np.random.default_rng([seed, 7])
    novel = _draw_novel(drawable, rng, fraction=fraction)
    seen = np.setdiff1d(labels, novel)
    seen_train = _with_labels(train, seen)
    rows = np.flatnonzero(np.diff(seen_train.labels_of.indptr))
    if not len(rows):
        message = f"fraction {fraction:g} leaves no training row; hide fewer labels"
        raise InvalidInput(message, field="fraction")
    queries = [int(rng.choice(_column(drawable, label))) for label in novel.tolist()]
    facts = Facts(
        format=FORMAT,
        version=VERSION,
        fraction=fraction,
        seed=seed,
        seen=len(seen),
        novel=len(novel),
    )
    return NovelSplit(
        seen=_relabelled(dataset, seen, train=seen_train.select(rows), name="seen"),
        everything=_relabelled(
            dataset,
            np.concatenate([seen, novel]),
            train=_one_shot(train, queries, seen=len(seen), total=len(labels)),
            name="novel",
        ),
        facts=facts,
    )


def _draw_novel(drawable: csr_matrix, rng: np.random.Generator, *, fraction: float) -> Rows:
    """The columns of the hidden labels, ascending; `drawable` is [N, L] in CSC form."""
    if not 0.0 < fraction < 1.0:
        raise InvalidInput(f"fraction must lie between 0 and 1, not {fraction:g}", field="fraction")
    candidates = np.flatnonzero(np.diff(drawable.indptr))
    novel = np.sort(rng.permutation(candidates)[: round(fraction * len(candidates))])
    if not len(novel):
        message = f"fraction {fraction:g} of {len(candidates)} labels hides no label"
        raise InvalidInput(message, field="fraction")
    return novel


def _relabelled(dataset: Dataset, columns: Rows, *, train: Split, name: str) -> Dataset:
    """The data set with only the labels `columns`, in that order, and another train split."""
    fields, aliases = dataset.label_fields, dataset.label_aliases
    return replace(
        dataset,
        name=f"{dataset.name}-{name}",
        train=train,
        test=_with_labels(dataset.test, columns),
        labels=dataset.labels.select(columns),
        label_metadata=rows_of(dataset.label_metadata, columns),
        label_fields=fields and tuple(fields[column] for column in columns.tolist()),
        label_aliases=aliases and tuple(aliases[column] for column in columns.tolist()),
    )


def write(split: NovelSplit, folder: Path) -> None:
    """Write the split into a new folder; raises `InvalidData` if the folder exists."""
    with new_folder(folder) as temporary:
        lf_xmc.write(split.seen, temporary / SEEN)
        lf_xmc.write(split.everything, temporary / ALL)
        write_json(temporary / FILE, asdict(split.facts))


def read(folder: Path) -> NovelSplit:
    """Read a folder that `write` wrote; raises `InvalidData` that names file and mistake."""
    path = folder / FILE
    if not path.is_file():
        raise InvalidData(path, "is missing; `keymatch lab split novel` writes such folders")
    facts = checked(Facts, read_json(path), path=path, writer="split novel")
    if (facts.format, facts.version) != (FORMAT, VERSION):
        raise InvalidData(path, f"is {facts.format} {facts.version}, not {FORMAT} {VERSION}")
    split = NovelSplit(
        seen=lf_xmc.read(folder / SEEN), everything=lf_xmc.read(folder / ALL), facts=facts
    )
    uids, one_shot = split.everything.labels.uids, split.everything.train.labels_of
    if (len(uids), one_shot.shape[0]) != (facts.seen + facts.novel, facts.novel):
        message = f"{ALL} holds {len(uids)} labels and {one_shot.shape[0]} one-shot queries"
        raise InvalidData(path, f"{message}, not {facts.seen + facts.novel} and {facts.novel}")
    if not np.array_equal(np.sort(one_shot.indices), split.novel):
        raise InvalidData(
            folder / ALL, "its train split must hold exactly one query for each novel label"
        )
    if uids[: facts.seen] != split.seen.labels.uids:
        raise InvalidData(folder / ALL, f"its first labels must be those of {SEEN}")
    return split


def _with_labels(split: Split, columns: Rows) -> Split:
    return replace(
        split,
        labels_of=csr_matrix(split.labels_of[:, columns]),
        filtered=csr_matrix(split.filtered[:, columns]),
    )


def _one_shot(train: Split, queries: list[int], *, seen: int, total: int) -> Split:
    """One row for each hidden label: its one-shot query with this label alone."""
    rows, ones = np.arange(len(queries)), np.ones(len(queries), np.float32)
    texts = tuple(train.instances.texts[row] for row in queries)
    return Split(
        instances=Texts(uids=tuple(f"one-shot-{row}" for row in rows.tolist()), texts=texts),
        labels_of=csr_matrix((ones, (rows, seen + rows)), shape=(len(queries), total)),
        filtered=csr_matrix((len(queries), total), dtype=bool),
        metadata_of=rows_of(train.metadata_of, np.array(queries)),
    )


def _column(matrix: csr_matrix, column: int) -> Rows:
    rows: Rows = matrix.indices[matrix.indptr[column] : matrix.indptr[column + 1]]
    return rows
