"""Ranks the best labels of one query from its retrieved keys, in compiled code or in numpy.

The installation compiles `votes.c` into `libvotes.so` (see `hatch_build.py`). Without it, numpy
computes the same in three times the time. Both apply the equations of `scoring` and add each
label's votes in the order of the keys, so their scores are equal to the last bit.

Subtle: the call keeps the interpreter's lock, because it takes only about twenty microseconds. A
thread that releases the lock waits up to the switch interval of 5 ms to get it back.

Stages then change the ranking. Each says how many labels it wants from the one before it, asked
backwards once, and then does its work, forwards. A request that does not ask for a capability, or
a bundle without it, has no such stage in its list (`Predictor.stages_of`).

Shapes: b retrieved keys of one query, n votes, k labels.
"""

from __future__ import annotations

import ctypes
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from service.core.bundle.bundle import Bundle
from service.core.memory.decay import Decay
from service.core.memory.label_table import LabelTable
from service.core.memory.view import View
from service.core.prediction.scoring import (
    best_candidates,
    predictive_scores,
    retriever_distribution,
    value_weights,
)
from service.core.prediction.steering import Steering
from service.core.types import Doubles, Floats, Reading, Rows, ScoreKind

LIBRARY = Path(__file__).with_name("libvotes.so")
_ROOM_FOR_TIES = 32  # the first call has room for this many labels beyond top_k
_OUT_OF_MEMORY = -1
_NOTHING_LEARNED = (b"", b"", 0, b"", None, 0)

Compiled = TypeVar("Compiled")
log = logging.getLogger("keymatch")


class Ranking(NamedTuple):
    """The best labels of one query, descending by score; ties are ordered by label id.

    `columns` [k] of V and `scores` [k] are plain numbers, because there are few. `rows` [b],
    `similarities` [b] and `weights` [b] (after Eq. 4) describe the keys that voted. Scores are sums
    of votes (Eq. 7). After reranking, scores are probabilities, and `votes` [k] are the sums.
    `places` [k] are the labels' places by score, from 0, before some were left out, and
    `best_score` was the first one's. `confidences` [k] are None if the bundle has none. If the
    table has `boosts` [k], labels are in the order of score times boost. `steering` is there if
    rules act on the query.
    """

    columns: Sequence[int]
    scores: Sequence[float]
    rows: Rows
    similarities: Floats
    weights: Doubles
    places: Sequence[int]
    best_score: float
    votes: Sequence[float] | None = None
    confidences: Sequence[float | None] | None = None
    boosts: Sequence[float] | None = None
    steering: Steering | None = None

    @property
    def score_kind(self) -> ScoreKind:
        """Whether the scores are sums of votes or probabilities."""
        return "votes" if self.votes is None else "probability"

    @property
    def pinned(self) -> frozenset[int]:
        """The columns of pinned labels."""
        return frozenset() if self.steering is None else frozenset(self.steering.pins.values())

    def only(self, places: Sequence[int]) -> Ranking:
        """Return the labels at some places, in this order."""
        votes, confidences, boosts = self.votes, self.confidences, self.boosts
        return self._replace(
            columns=[self.columns[place] for place in places],
            scores=[self.scores[place] for place in places],
            places=[self.places[place] for place in places],
            votes=None if votes is None else [votes[place] for place in places],
            confidences=None if confidences is None else [confidences[one] for one in places],
            boosts=None if boosts is None else [boosts[place] for place in places],
        )

    def first(self, count: int) -> Ranking:
        """Return the first `count` labels."""
        return self if len(self.columns) <= count else self.only(range(count))

    def without(self, columns: Collection[int]) -> Ranking:
        """Return the labels that are not at these columns."""
        return self.only([place for place, one in enumerate(self.columns) if one not in columns])

    def by_score(self) -> Ranking:
        """Return the labels in the order of their scores alone."""
        if self.boosts is None:
            return self
        return self.only(sorted(range(len(self.places)), key=self.places.__getitem__))

    def boosted(self, boosts: Floats | None) -> Ranking:
        """Return labels that are in the order of their scores, in the order of score times boost.

        `boosts` are those of a `LabelTable`. Labels that tie stay in the order of their scores.
        """
        if boosts is None:
            return self
        ranked = _times_boosts(self.scores, self.columns, boosts)
        order = sorted(range(len(ranked)), key=lambda place: -ranked[place])
        return self.with_boosts(boosts).only(order)

    def with_boosts(self, boosts: Floats | None) -> Ranking:
        """Return the ranking with other boosts of a `LabelTable`, in the same order."""
        return self._replace(boosts=None if boosts is None else boosts_of(self.columns, boosts))

    def with_pins(self, pins: Mapping[int, int], others: Sequence[int], *, count: int) -> Ranking:
        """Return the columns `others`, among which pinned ones stand at their positions, from 0.

        A pinned label that is not in this ranking has no votes. At most `count` are returned.
        """
        ranked = frozenset(self.columns)
        missing = [column for column in pins.values() if column not in ranked]
        fill = len(missing)
        votes, confidences, boosts = self.votes, self.confidences, self.boosts
        whole = self._replace(
            columns=[*self.columns, *missing],
            scores=[*self.scores, *[0.0] * fill],
            places=[*self.places, *[len(self.columns)] * fill],
            votes=None if votes is None else [*votes, *[0.0] * fill],
            confidences=None if confidences is None else [*confidences, *[None] * fill],
            boosts=None if boosts is None else [*boosts, *[1.0] * fill],
        )
        order = list(others)
        for position in sorted(pins):
            order.insert(position, pins[position])
        place_of = {column: place for place, column in enumerate(whole.columns)}
        return whole.only([place_of[column] for column in order[:count]])


class NumpyRanker:
    """Counts the votes of retrieved keys and ranks the labels, with the functions of `scoring`."""

    def rank(
        self,
        view: View,
        *,
        rows: Rows,
        similarities: Floats,
        tau: float,
        memorization: float,
        top_k: int,
    ) -> Ranking:
        """Rank the labels that `rows` [b] vote for.

        `similarities` [b] of the keys are descending. `tau` is the temperature of the softmax.
        Raises `IndexError` for a row that the memory does not have.
        """
        weights = value_weights(
            weights=retriever_distribution(similarities=similarities, tau=tau),
            is_instance=view.is_instance(rows),
            memorization=memorization,
        )
        labels, votes_per_key, vote_weights = view.weighted_votes(rows)
        columns, scores = predictive_scores(
            weights=weights,
            labels=labels,
            votes_per_key=votes_per_key,
            vote_weights=vote_weights,
        )
        if vote_weights is not None:
            columns, scores = columns[scores >= 0], scores[scores >= 0]
        ranked, boosts = scores, view.labels.boosts
        if boosts is not None:
            ranked = np.array(_times_boosts(scores.tolist(), columns.tolist(), boosts))
        best = best_candidates(scores=ranked, top_k=top_k)
        found = columns[best].tolist(), scores[best].tolist()
        best_columns, best_scores = _best(*found, labels=view.labels, top_k=top_k)
        return Ranking(
            columns=best_columns,
            scores=best_scores,
            rows=rows,
            similarities=similarities,
            weights=weights,
            places=range(len(best_scores)),
            best_score=max(best_scores, default=0.0),
        ).boosted(boosts)


class _Values(ctypes.Structure):
    """The bundle's rows of V as `votes.c` reads them."""

    _fields_ = (
        ("instances", ctypes.c_int64),
        ("labels", ctypes.c_int64),
        ("entries", ctypes.c_int64),
        ("indptr", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),  # NULL if every vote weighs 1
    )


class _BundleValues:
    """A bundle's values at one time. Also keeps the arrays alive whose addresses it contains."""

    def __init__(self, bundle: Bundle, decay: Decay | None) -> None:
        self.bundle, self.decay, weights = bundle, decay, bundle.vote_weights
        if decay is not None:
            weights = decay.of(weights, bundle.vote_hours)
        self._arrays = (
            np.ascontiguousarray(bundle.indptr, np.int64),
            np.ascontiguousarray(bundle.indices, np.int32),
            None if weights is None else np.ascontiguousarray(weights, np.float32),
        )
        addresses = (None if array is None else array.ctypes.data for array in self._arrays)
        sizes = (bundle.instances, bundle.labels, len(bundle.indices))
        self.values = _Values(*sizes, *addresses)
        self.address = ctypes.addressof(self.values)


class CompiledRanker:
    """Ranks with `votes.c`. Only the softmax's exponentials and their sum are computed by numpy."""

    def __init__(self) -> None:
        """Load the compiled library.

        Raises `OSError` if it was not built, and `AttributeError` if another version was built.
        """
        self._best = ctypes.PyDLL(str(LIBRARY)).best_boosted_labels
        self._best.restype = ctypes.c_int64
        pointer, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        self._best.argtypes = [
            *(pointer, pointer, integer),  # values; rows, b
            *(pointer, real, real),  # exponentials and their sum, lambda
            *(pointer, pointer, integer),  # learned rows: the votes of each, the kinds, the number
            *(pointer, pointer, integer),  # the columns that learned rows vote for, weights or NULL
            *(pointer, integer),  # deleted columns
            *(pointer, integer),  # bitmap of the only columns that count, or NULL; its bits
            *(pointer, integer),  # factors of the first columns or NULL, their number
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
        memorization: float,
        top_k: int,
    ) -> Ranking:
        """Rank like `NumpyRanker.rank`, with equal results to the last bit."""
        b = len(rows)
        exponentials = np.true_divide(similarities, tau, dtype=np.float64)
        if b:
            exponentials -= exponentials[0]
            np.exp(exponentials, out=exponentials)
        keys = _bytes(rows, np.int64), b, exponentials.tobytes(), np.add.reduce(exponentials)
        deleted = view.labels.deleted
        kept, boosts = view.labels.kept, view.labels.boosts
        others = (
            *_learned(view, rows),
            *(_bytes(deleted, np.int32), len(deleted)),
            *(kept, 0 if kept is None else 8 * len(kept)),
            *((None, 0) if boosts is None else (boosts.ctypes.data, len(boosts))),
        )
        matrix, weights = self._values(view.bundle, view.decay), (ctypes.c_double * b)()
        room = top_k + _ROOM_FOR_TIES
        while True:
            columns, scores = (ctypes.c_int32 * room)(), (ctypes.c_double * room)()
            found = self._best(
                *(matrix.address, *keys, memorization, *others),
                *(top_k, room, columns, scores, weights),
            )
            if found == _OUT_OF_MEMORY:
                raise MemoryError("there is no memory to count the votes of a query")
            if found < 0:
                raise IndexError("a retrieved row or one of its votes lies outside the memory")
            if found <= room:
                break
            room = found
        best_columns, best_scores = _best(
            columns[:found], scores[:found], labels=view.labels, top_k=top_k
        )
        return Ranking(
            columns=best_columns,
            scores=best_scores,
            rows=rows,
            similarities=similarities,
            weights=np.frombuffer(memoryview(weights), np.float64),
            places=range(len(best_scores)),
            best_score=max(best_scores, default=0.0),
        ).boosted(boosts)

    def _values(self, bundle: Bundle, decay: Decay | None) -> _BundleValues:
        last, timed = self._last, None if bundle.vote_hours is None else decay
        if last is None or last.bundle is not bundle or last.decay != timed:
            last = self._last = _BundleValues(bundle, timed)
        return last


Ranker = CompiledRanker | NumpyRanker


def open_ranker() -> Ranker:
    """Return the compiled ranker, or numpy's with a warning; see `compiled_or`."""
    in_numpy: Ranker = NumpyRanker()
    return compiled_or(CompiledRanker, in_numpy, slower="numpy counts the votes", source="votes.c")


def compiled_or(
    load: Callable[[], Compiled], fallback: Compiled, *, slower: str, source: str
) -> Compiled:
    """Return what `load` opens, or `fallback` with a warning if the library is missing or old.

    `slower` ends the warning with what the fallback does, such as "numpy counts the votes".
    `source` is the path of the C file within service/core/prediction.
    """
    try:
        return load()
    except (OSError, AttributeError) as error:
        log.warning(
            f"{slower}, which takes longer; install the package again to compile"
            f" service/core/prediction/{source}",
            extra={"cause": str(error)},
        )
        return fallback


def in_order(
    columns: Sequence[int], scores: Sequence[float], *, labels: LabelTable, top_k: int
) -> tuple[Sequence[int], Sequence[float]]:
    """Return the `top_k` best columns and their scores; ties are ordered by label id."""
    if len(set(scores)) == len(scores):  # usual case: no ties, so ids are not needed
        best = sorted(zip(scores, columns, strict=True), reverse=True)[:top_k]
        return [column for _, column in best], [score for score, _ in best]
    times = Counter(scores)
    # Reading ids takes longest, so they are read only for labels that tie.
    candidates = sorted(
        (-score, labels.id_at(column) if times[score] > 1 else "", column)
        for column, score in zip(columns, scores, strict=True)
    )[:top_k]
    return [column for _, _, column in candidates], [-score for score, _, _ in candidates]


def boosts_of(columns: Sequence[int], boosts: Floats) -> list[float]:
    """Return the boosts [k] of labels at `columns` [k]; those beyond the array [C] are 1."""
    count = len(boosts)
    return [float(boosts[column]) if column < count else 1.0 for column in columns]


def _times_boosts(scores: Sequence[float], columns: Sequence[int], boosts: Floats) -> list[float]:
    """Return the scores [k] of labels at `columns` [k], each times the label's boost."""
    own = boosts_of(columns, boosts)
    return [score * boost for score, boost in zip(scores, own, strict=True)]


def _best(
    columns: Sequence[int], scores: Sequence[float], *, labels: LabelTable, top_k: int
) -> tuple[Sequence[int], Sequence[float]]:
    """Return the `top_k` best columns by score times boost, in the order of their scores."""
    if labels.boosts is not None:
        score_of = dict(zip(columns, scores, strict=True))
        ranked = _times_boosts(scores, columns, labels.boosts)
        columns, _ = in_order(columns, ranked, labels=labels, top_k=top_k)
        scores = [score_of[column] for column in columns]
    return in_order(columns, scores, labels=labels, top_k=top_k)


def _learned(view: View, rows: Rows) -> tuple[bytes | int | None, ...]:
    """Return the C arguments for those of `rows` [b] that were learned since the bundle."""
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


def _bytes(array: NDArray[Any], dtype: type[np.generic]) -> bytes:
    """Return a copy for C, because asking numpy for a small array's address takes longer."""
    return array.astype(dtype, copy=False).tobytes()


# The stages of a ranking ---------------------------------------------------------------------


class Stopwatch:
    """Measures seconds by stage."""

    def __init__(self) -> None:
        """Start empty."""
        self.seconds: dict[str, float] = {}
        self._within = 0.0  # seconds of stages nested in the current one

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block as stage `name`, without the stages nested in it."""
        start, before, self._within = perf_counter(), self._within, 0.0
        try:
            yield
        finally:
            seconds = perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds - self._within
            self._within = before + seconds


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SearchedQuery:
    """One query as it was read, with its vector [d] and what was found for it in `view`.

    The `similarities` [b] of its keys, the `rows` [b], are descending.
    """

    view: View
    reading: Reading
    vector: Floats
    similarities: Floats
    rows: Rows
    watch: Stopwatch


AStage = TypeVar("AStage", bound="Stage")


class Stage(Protocol):
    """One step from votes to keywords."""

    def wants(self, count: int) -> int:
        """Return how many labels must come in, so that `count` can go out."""

    def apply(self, ranking: Ranking, query: SearchedQuery, count: int) -> Ranking:
        """Return a ranking of at most `count` labels."""


@dataclass(frozen=True, slots=True)
class Votes:
    """What begins a ranking: the labels with the most votes of the retrieved keys."""

    ranker: Ranker
    tau: float
    memorization: float

    def ranking(self, query: SearchedQuery, count: int) -> Ranking:
        """Return the `count` best labels."""
        return self.ranker.rank(
            query.view,
            rows=query.rows,
            similarities=query.similarities,
            tau=self.tau,
            memorization=self.memorization,
            top_k=count,
        )


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a request: those that score labels, then those that choose among them.

    Rules pin labels in between: pinned ones have scores, and nothing leaves them out.
    """

    scoring: Sequence[Stage]
    choosing: Sequence[Stage]

    @property
    def all(self) -> Sequence[Stage]:
        """All stages, if nothing is pinned."""
        return (*self.scoring, *self.choosing)

    def of(self, kind: type[AStage]) -> Sequence[AStage]:
        """Return the stages of one kind."""
        return [stage for stage in self.all if isinstance(stage, kind)]


def wanted(stages: Sequence[Stage], count: int) -> list[int]:
    """Return how many labels each stage gets, and last how many leave them: `count`."""
    counts = [count]
    for stage in reversed(stages):
        counts.append(stage.wants(counts[-1]))
    return counts[::-1]


def applied(stages: Sequence[Stage], ranking: Ranking, query: SearchedQuery, count: int) -> Ranking:
    """Return what the stages make of a ranking with as many labels as they want."""
    for stage, leaving in zip(stages, wanted(stages, count)[1:], strict=True):
        ranking = stage.apply(ranking, query, leaving)
    return ranking


def ranked(votes: Votes, stages: Sequence[Stage], query: SearchedQuery, count: int) -> Ranking:
    """Return the ranking of a query after all stages."""
    first = votes.ranking(query, wanted(stages, count)[0])
    return applied(stages, first, query, count)
