"""The best labels of one query from its retrieved keys, in compiled code or in numpy.

The installation compiles `votes.c` into `libvotes.so` (see `hatch_build.py`); where that was not
built, numpy computes the same. Both apply the equations of `scoring` and add each label's votes in
the order of the keys, so their scores are equal to the last bit. The compiled one takes a third of
the time.

Subtle: the call keeps the interpreter's lock. It takes some twenty microseconds; who releases the
lock for so short a time waits to have it back, beside a busy thread up to the switch interval of
5 ms (measured: 99th percentile 18 ms in place of 0.6).

Shapes: b retrieved keys of one query, n votes, k labels.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from service.core.bundle.bundle import Bundle
from service.core.memory.label_table import LabelTable
from service.core.memory.view import View
from service.core.prediction.compiled import compiled_or
from service.core.prediction.scoring import (
    best_candidates,
    predictive_scores,
    retriever_distribution,
    value_weights,
)
from service.core.types import Doubles, Floats, PredictOptions, Rows

LIBRARY = Path(__file__).with_name("libvotes.so")
_ROOM_FOR_TIES = 32  # labels beyond top_k that a first call has room for
_OUT_OF_MEMORY = -1
_NOTHING_LEARNED = (b"", b"", 0, b"", None, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """The best labels of one query, descending by score, ties in order of label id.

    `columns` [k] of V with `scores` [k] are plain numbers, as there are few. `rows` [b],
    `similarities` [b] and `weights` [b] (Eq. 4 applied) are the keys that voted. Scores are sums of
    votes (Eq. 7); where labels were ranked a second time, `votes` [k] are these sums.
    """

    columns: Sequence[int]
    scores: Sequence[float]
    rows: Rows
    similarities: Floats
    weights: Doubles
    votes: Sequence[float] | None = None


class Ranker(Protocol):
    """Counts the votes of retrieved keys and ranks the labels."""

    def rank(
        self,
        view: View,
        *,
        rows: Rows,
        similarities: Floats,
        tau: float,
        options: PredictOptions,
    ) -> Ranking:
        """Rank the labels that `rows` [b] vote for.

        `similarities` [b] are those of the keys, descending, and `tau` the softmax's temperature.
        Raises `IndexError` for a row that the memory does not have.
        """
        ...


class NumpyRanker:
    """The functions of `scoring` one after the other."""

    def rank(
        self,
        view: View,
        *,
        rows: Rows,
        similarities: Floats,
        tau: float,
        options: PredictOptions,
    ) -> Ranking:
        """Return what `Ranker.rank` says."""
        weights = value_weights(
            weights=retriever_distribution(similarities=similarities, tau=tau),
            is_instance=view.is_instance(rows),
            memorization=options.memorization,
        )
        labels, votes_per_key, vote_weights = view.weighted_votes(rows)
        columns, scores = predictive_scores(
            weights=weights,
            labels=labels,
            votes_per_key=votes_per_key,
            vote_weights=vote_weights,
        )
        best = best_candidates(scores=scores, top_k=options.top_k)
        best_columns, best_scores = in_order(
            columns[best].tolist(), scores[best].tolist(), labels=view.labels, top_k=options.top_k
        )
        return Ranking(
            columns=best_columns,
            scores=best_scores,
            rows=rows,
            similarities=similarities,
            weights=weights,
        )


class _Values(ctypes.Structure):
    """The bundle's rows of V as `votes.c` reads them."""

    _fields_ = (
        ("instances", ctypes.c_int64),
        ("labels", ctypes.c_int64),
        ("entries", ctypes.c_int64),
        ("indptr", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),  # NULL where every vote weighs 1
    )


class _BundleValues:
    """The values of one bundle; keeps the arrays whose addresses they hold."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._arrays = (
            np.ascontiguousarray(bundle.indptr, np.int64),
            np.ascontiguousarray(bundle.indices, np.int32),
        )
        indptr, indices = self._arrays
        weights = bundle.vote_weights
        self._weights = None if weights is None else np.ascontiguousarray(weights, np.float32)
        self.values = _Values(
            instances=bundle.instances,
            labels=bundle.labels,
            entries=len(indices),
            indptr=indptr.ctypes.data,
            indices=indices.ctypes.data,
            weights=None if self._weights is None else self._weights.ctypes.data,
        )
        self.address = ctypes.addressof(self.values)


class CompiledRanker:
    """`votes.c`; only the softmax's exponentials and their sum are numpy's."""

    def __init__(self) -> None:
        """Load the compiled library.

        Raises `OSError` if it was not built, and `AttributeError` if another version was.
        """
        self._best = ctypes.PyDLL(str(LIBRARY)).best_voted_labels
        self._best.restype = ctypes.c_int64
        pointer, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        self._best.argtypes = [
            *(pointer, pointer, integer),  # values; rows, b
            *(pointer, real, real),  # exponentials and their sum, lambda
            *(pointer, pointer, integer),  # learned rows: votes of each, kinds, how many rows
            *(pointer, pointer, integer),  # columns that these vote for, weights of votes or NULL
            *(pointer, integer),  # deleted columns
            *(integer, integer),  # top_k, room
            *(pointer, pointer, pointer),  # written: columns, scores, weights
        ]
        self._last: _BundleValues | None = None

    def rank(
        self,
        view: View,
        *,
        rows: Rows,
        similarities: Floats,
        tau: float,
        options: PredictOptions,
    ) -> Ranking:
        """Return what `Ranker.rank` says."""
        b, top_k = len(rows), options.top_k
        exponentials = np.true_divide(similarities, tau, dtype=np.float64)
        if b:
            exponentials -= exponentials[0]
            np.exp(exponentials, out=exponentials)
        keys = _bytes(rows, np.int64), b, exponentials.tobytes(), np.add.reduce(exponentials)
        others = *_learned(view, rows), *_sized(view.labels.deleted, np.int32)
        matrix, weights = self._values(view.bundle), (ctypes.c_double * b)()
        room = top_k + _ROOM_FOR_TIES
        while True:
            columns, scores = (ctypes.c_int32 * room)(), (ctypes.c_double * room)()
            found = self._best(
                *(matrix.address, *keys, options.memorization, *others),
                *(top_k, room, columns, scores, weights),
            )
            if found < 0:
                raise _failure(found)
            if found <= room:
                break
            room = found
        best_columns, best_scores = in_order(
            columns[:found], scores[:found], labels=view.labels, top_k=top_k
        )
        return Ranking(
            columns=best_columns,
            scores=best_scores,
            rows=rows,
            similarities=similarities,
            weights=np.frombuffer(memoryview(weights), np.float64),
        )

    def _values(self, bundle: Bundle) -> _BundleValues:
        last = self._last
        if last is None or last.bundle is not bundle:
            last = self._last = _BundleValues(bundle)
        return last


def open_ranker() -> Ranker:
    """Return the compiled ranker; without a library, or with an old one, numpy's and a warning."""
    in_numpy: Ranker = NumpyRanker()
    return compiled_or(CompiledRanker, in_numpy, slower="numpy counts the votes", source="votes.c")


def in_order(
    columns: Sequence[int], scores: Sequence[float], *, labels: LabelTable, top_k: int
) -> tuple[Sequence[int], Sequence[float]]:
    """Return the `top_k` best columns and their scores, equal scores in order of label id."""
    if len(set(scores)) == len(scores):  # most often, so no id decides
        best = sorted(zip(scores, columns, strict=True), reverse=True)[:top_k]
        return [column for _, column in best], [score for score, _ in best]
    times = Counter(scores)
    # Reading an id takes longer than the rest, and most labels tie with no other.
    candidates = sorted(
        (-score, labels.id_at(column) if times[score] > 1 else "", column)
        for column, score in zip(columns, scores, strict=True)
    )[:top_k]
    return [column for _, _, column in candidates], [-score for score, _, _ in candidates]


def _learned(view: View, rows: Rows) -> tuple[bytes | int | None, ...]:
    """The arguments that describe those of `rows` [b] that were learned since the bundle."""
    if not view.parts:
        return _NOTHING_LEARNED
    rows = rows[rows >= view.base_rows]
    columns, counts, weights = view.learned_votes(rows)
    kinds = view.is_instance(rows)
    return (
        _bytes(counts, np.int64),
        _bytes(kinds, np.bool_),
        len(rows),
        _bytes(columns, np.int32),
        None if weights is None else _bytes(weights, np.float32),
        len(columns),
    )


def _sized(array: NDArray[Any], dtype: type[np.generic]) -> tuple[bytes, int]:
    return _bytes(array, dtype), len(array)


def _bytes(array: NDArray[Any], dtype: type[np.generic]) -> bytes:
    """A copy for C: to ask numpy for an array's address takes longer than to copy a small one."""
    return array.astype(dtype, copy=False).tobytes()


def _failure(status: int) -> Exception:
    if status == _OUT_OF_MEMORY:
        return MemoryError("there is no memory to count the votes of a query")
    return IndexError("a retrieved row or one of its votes lies outside the memory")
