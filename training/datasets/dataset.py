"""A data set of short texts and their labels: what readers return and what training takes.

Shapes: N instances of a split, L labels, M metadata items.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from scipy.sparse import csr_matrix, vstack

from service.core.bundle.manifest import LearnedFacts
from service.core.errors import InvalidInput
from service.core.label_filter import Metadata
from service.core.types import Doubles, Rows
from training.datasets.propensity import inverse_propensity

ALLOWED_FIELDS = (("title",), ("title", "content"))


@dataclass(frozen=True, kw_only=True)
class Propensity:
    """A data set's propensity constants A and B (Jain et al., 2016).

    The public repository sets A, B to .5, .4 for Wikipedia, .6, 2.6 for Amazon, else .55, 1.5.
    """

    a: float
    b: float

    def __post_init__(self) -> None:
        for name, value in (("a", self.a), ("b", self.b)):
            if not (math.isfinite(value) and value > 0):
                raise InvalidInput(
                    f"propensity {name} must be a positive finite number, not {value!r}",
                    field=f"propensity.{name}",
                )


DEFAULT_PROPENSITY = Propensity(a=0.55, b=1.5)


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts and their unique ids, in row order."""

    uids: tuple[str, ...]
    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.uids) != len(self.texts):
            message = f"{len(self.uids)} uids but {len(self.texts)} texts; each text needs one uid"
            raise InvalidInput(message, field="uids")

    @classmethod
    def named_by_text(cls, texts: Iterable[str]) -> Texts:
        """Return texts that are their own uids."""
        names = tuple(texts)
        return cls(uids=names, texts=names)

    def __len__(self) -> int:
        return len(self.uids)

    def select(self, rows: Rows) -> Texts:
        """Return the given rows, in the given order."""
        return Texts(
            uids=tuple(self.uids[row] for row in rows.tolist()),
            texts=tuple(self.texts[row] for row in rows.tolist()),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """The train or the test side of a data set."""

    instances: Texts  # N
    labels_of: csr_matrix  # [N, L] float32, the relevance Y
    filtered: csr_matrix  # [N, L] bool, pairs that are left out of both training and ranking
    metadata_of: csr_matrix | None = None  # [N, M] float32, every entry is 1

    def __len__(self) -> int:
        return len(self.instances)

    def select(self, rows: Rows) -> Split:
        """Return the given rows, in the given order."""
        return Split(
            instances=self.instances.select(rows),
            labels_of=self.labels_of[rows],
            filtered=self.filtered[rows],
            metadata_of=rows_of(self.metadata_of, rows),
        )

    def followed_by(self, other: Split) -> Split:
        """Return the rows of both splits; without metadata unless both have some."""
        metadata = None
        if self.metadata_of is not None and other.metadata_of is not None:
            metadata = vstack([self.metadata_of, other.metadata_of], format="csr")
        return Split(
            instances=Texts(
                uids=self.instances.uids + other.instances.uids,
                texts=self.instances.texts + other.instances.texts,
            ),
            labels_of=vstack([self.labels_of, other.labels_of], format="csr"),
            filtered=vstack([self.filtered, other.filtered], format="csr"),
            metadata_of=metadata,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A data set; raises `InvalidInput` if the shapes of its parts do not agree.

    Each text was made by joining `fields`. `source` names the data's origin. `learned` names the
    events of a label log that the data include. `label_fields` become the metadata of a bundle's
    labels, and have nothing to do with the items of `label_metadata`. `label_aliases` become the
    aliases of a bundle's labels; training ignores both.
    """

    name: str
    train: Split
    test: Split
    labels: Texts  # L; a label may occur in neither split
    propensity: Propensity = DEFAULT_PROPENSITY
    fields: tuple[str, ...] = ("title", "content")
    label_metadata: csr_matrix | None = None  # [L, M] float32, every entry is 1
    metadata: Texts | None = None  # M
    label_fields: tuple[Metadata, ...] | None = None  # L
    label_aliases: tuple[tuple[str, ...], ...] | None = None  # L
    source: str = ""
    learned: LearnedFacts | None = None

    def digest(self) -> str:
        """Return the SHA-256 over labels, queries and pairs of both splits, with their weights."""
        digest = hashlib.sha256()
        for texts in (self.labels, self.train.instances, self.test.instances):
            for text in (*texts.uids, *texts.texts):
                digest.update(text.encode() + b"\0")
        for split in (self.train, self.test):
            pairs = split.labels_of.sorted_indices()
            digest.update(pairs.indptr.astype("<i8").tobytes())
            digest.update(pairs.indices.astype("<i8").tobytes())
            digest.update(pairs.data.astype("<f4").tobytes())
        return digest.hexdigest()

    def __post_init__(self) -> None:
        check_fields(self.fields)
        for side, split in (("train", self.train), ("test", self.test)):
            shape = (len(split), len(self.labels))
            _check_shape(f"{side}.labels_of", split.labels_of, shape)
            _check_shape(f"{side}.filtered", split.filtered, shape)
            self._check_metadata(f"{side}.metadata_of", split.metadata_of, len(split))
        self._check_metadata("label_metadata", self.label_metadata, len(self.labels))
        for name in ("label_fields", "label_aliases"):
            of_labels = getattr(self, name)
            if of_labels is not None and len(of_labels) != len(self.labels):
                message = f"{name} has {len(of_labels)} entries for {len(self.labels)} labels"
                raise InvalidInput(message, field=name)

    def inverse_propensities(self, labels_of: csr_matrix | None = None) -> Doubles:
        """Return `inverse_propensity` of all labels [L] in training rows, by default in all."""
        labels_of = self.train.labels_of if labels_of is None else labels_of
        return inverse_propensity(labels_of, a=self.propensity.a, b=self.propensity.b)

    def _check_metadata(self, name: str, matrix: csr_matrix | None, rows: int) -> None:
        if (matrix is None) != (self.metadata is None):
            raise InvalidInput(f"{name} and metadata must be given together", field=name)
        if self.metadata is not None:
            _check_shape(name, matrix, (rows, len(self.metadata)))


def of_texts(
    labels_of: Mapping[str, Collection[str]],
    *,
    is_test: Callable[[str], bool],
    name: str,
    source: str,
    labels: Sequence[str] | None = None,
) -> Dataset:
    """Build a data set from texts and their labels; each text is its own uid.

    A row's labels may be a mapping to their relevance, which otherwise is 1. Rows keep their order.
    `labels` are all labels, in their order; by default those of the rows, sorted. A label equal to
    its row's text is filtered.
    """
    if labels is None:
        labels = sorted({label for found in labels_of.values() for label in found})
    column = {label: number for number, label in enumerate(labels)}

    def split(*, test: bool) -> Split:
        texts = [text for text in labels_of if is_test(text) is test]
        shape, found = (len(texts), len(labels)), [labels_of[text] for text in texts]
        columns = np.fromiter(map(column.__getitem__, chain.from_iterable(found)), np.int32)
        counts = np.fromiter(map(len, found), np.int64)
        rows = np.repeat(np.arange(len(texts), dtype=np.int32), counts)
        relevance = np.fromiter(chain.from_iterable(map(_relevance, found)), np.float32)
        same_text = ((row, column[text]) for row, text in enumerate(texts) if text in column)
        return Split(
            instances=Texts.named_by_text(texts),
            labels_of=csr_matrix((relevance, (rows, columns)), shape=shape),
            filtered=pairs_matrix(same_text, shape=shape),
        )

    return Dataset(
        name=name,
        train=split(test=False),
        test=split(test=True),
        labels=Texts.named_by_text(labels),
        fields=("title",),
        source=source,
    )


def _relevance(labels: Collection[str]) -> Iterable[float]:
    return labels.values() if isinstance(labels, Mapping) else repeat(1.0, len(labels))


def require_test_rows(dataset: Dataset) -> None:
    """Raise `InvalidInput` for a data set without test rows."""
    if not len(dataset.test):
        message = f"data set {dataset.name} has no test rows to measure on"
        raise InvalidInput(f"{message}; `data pairs --test-fraction` above 0 makes some")


def check_fields(fields: tuple[str, ...]) -> None:
    """Raise `InvalidInput` unless `fields` are among `ALLOWED_FIELDS`."""
    if tuple(fields) not in ALLOWED_FIELDS:
        allowed = " or ".join(", ".join(names) for names in ALLOWED_FIELDS)
        raise InvalidInput(f"fields must be {allowed}, not {fields!r}", field="fields")


def pairs_matrix(pairs: Iterable[tuple[int, int]], *, shape: tuple[int, int]) -> csr_matrix:
    """Mark pairs (row, column) in a bool matrix of `shape`; a repeated pair is marked once."""
    entries = np.fromiter(pairs, np.dtype((np.int32, 2)))  # [P, 2]
    ones = np.ones(len(entries), dtype=np.bool_)
    matrix = csr_matrix((ones, entries.T), shape=shape, dtype=np.bool_)
    matrix.sum_duplicates()
    return matrix


def rows_of(matrix: csr_matrix | None, rows: Rows) -> csr_matrix | None:
    """Return the given rows of a matrix that a data set may lack."""
    return None if matrix is None else matrix[rows]


def _check_shape(name: str, matrix: csr_matrix, shape: tuple[int, int]) -> None:
    if tuple(matrix.shape) != shape:
        raise InvalidInput(f"{name} is {tuple(matrix.shape)}, expected {shape}", field=name)
