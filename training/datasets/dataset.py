"""A data set of short texts and their labels: what readers return and what training takes.

Shapes: N instances of a split, L labels, M metadata items.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.bundle.manifest import LearnedFacts
from service.core.errors import InvalidInput

ALLOWED_FIELDS = (("title",), ("title", "content"))


@dataclass(frozen=True, kw_only=True)
class Propensity:
    """The propensity constants A and B of Jain et al. (2016), which belong to a data set.

    The public repository uses 0.5 and 0.4 for Wikipedia, 0.6 and 2.6 for Amazon, otherwise 0.55 and
    1.5.
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

    def __len__(self) -> int:
        return len(self.uids)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """The train or the test side of a data set."""

    instances: Texts  # N
    labels_of: csr_matrix  # [N, L] float32, the relevance Y
    filtered: csr_matrix  # [N, L] bool, pairs that are removed before ranking and do not train
    metadata_of: csr_matrix | None = None  # [N, M] float32, ones

    def __len__(self) -> int:
        return len(self.instances)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A data set; raises `InvalidInput` if the shapes of its parts do not agree.

    `fields` are the fields that each text was joined from; `source` says where the data is from,
    and `learned` which events of a label log it holds.
    """

    name: str
    train: Split
    test: Split
    labels: Texts  # L; a label may occur in neither split
    propensity: Propensity = DEFAULT_PROPENSITY
    fields: tuple[str, ...] = ("title", "content")
    label_metadata: csr_matrix | None = None  # [L, M] float32, ones
    metadata: Texts | None = None  # M
    source: str = ""
    learned: LearnedFacts | None = None

    def __post_init__(self) -> None:
        check_fields(self.fields)
        for side, split in (("train", self.train), ("test", self.test)):
            shape = (len(split), len(self.labels))
            _check_shape(f"{side}.labels_of", split.labels_of, shape)
            _check_shape(f"{side}.filtered", split.filtered, shape)
            self._check_metadata(f"{side}.metadata_of", split.metadata_of, len(split))
        self._check_metadata("label_metadata", self.label_metadata, len(self.labels))

    def _check_metadata(self, name: str, matrix: csr_matrix | None, rows: int) -> None:
        if (matrix is None) != (self.metadata is None):
            raise InvalidInput(f"{name} and metadata must be given together", field=name)
        if self.metadata is not None:
            _check_shape(name, matrix, (rows, len(self.metadata)))


def require_test_rows(dataset: Dataset) -> None:
    """Raise `InvalidInput` for a data set without a test split, where something is measured."""
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
    entries = np.array(list(pairs), dtype=np.int32).reshape(-1, 2)  # [P, 2]
    ones = np.ones(len(entries), dtype=np.bool_)
    matrix = csr_matrix((ones, (entries[:, 0], entries[:, 1])), shape=shape, dtype=np.bool_)
    matrix.sum_duplicates()
    return matrix


def _check_shape(name: str, matrix: csr_matrix, shape: tuple[int, int]) -> None:
    if tuple(matrix.shape) != shape:
        raise InvalidInput(f"{name} is {tuple(matrix.shape)}, expected {shape}", field=name)
