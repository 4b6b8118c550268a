"""The words of all alive rows of one view: which rows match a query, and which words are alike.

Dead rows do not count, so the answers depend on the log alone, not on which rows are sealed.

Shapes: m matched rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import OSA

from service.core.index.protocol import Tombstones
from service.core.lexical.dictionary import NO_DICTIONARY, Dictionary
from service.core.lexical.word_index import WordIndex, bigrams_of, common, letters_of
from service.core.lexical.words import Chunk, chunks_of, words_of
from service.core.types import Bools, Doubles, Indices, RowKind, Rows

_BIGRAMS_AN_EDIT = 3  # the most that one edit changes: those around a transposition
_FIRST = 64  # places of a word that are looked at first: most often one of these rows is alive
_NOWHERE: Indices = np.zeros(0, np.int32)

MOST_WORDS = 16  # of a query
MOST_MATCHES = 64  # rows of a query
MOST_COVERED = 1_000  # rows that consist of words of a query
OWN = 0.8  # what a full match adds to the cosine of a row that words alone can find
_FEW_MATCHES = 4  # rows that match at least as well as a row that the words identify
MOST_WEIGHED = 1_000  # rows of a word in one part, whose masses are looked at
BEHIND = 0.1  # the dictionary's part of a word's share of texts
ZIPF = 10.0  # rank + ZIPF: the most frequent words are less frequent than 1 / rank says
_LISTED = 512  # rows that are looked at for one query: those with its rarest words


class Alike(NamedTuple):
    """A known word near a misspelled one: how many rows have it, and its `share` of texts."""

    word: str
    rows: int
    share: float


class Matches(NamedTuple):
    """The rows that share words with a query, ascending.

    `coverage` is the rarity of the shared words, as a share of that of all words of the query. The
    rarity is BM25's (Robertson and Zaragoza, 2009). `own` is above 0 for rows that a vector may not
    find: posted rows, whose words the encoder may not know, and rows with all words of a query that
    has a code.
    """

    rows: Rows  # [m]
    coverage: Doubles  # [m], in (0, 1]
    own: Doubles  # [m], in [0, OWN]

    def adding(self, share: float) -> tuple[Rows, Doubles]:
        """Return the rows and what the words add to their cosines; leaves out what adds nothing.

        Words of trained rows add `share`.
        """
        similarities = share * self.coverage + self.own
        adds = similarities > 0.0
        return self.rows[adds], similarities[adds]

    def of_kind(self, kind: RowKind | None, is_instance: Callable[[Rows], Bools]) -> Matches:
        """Return the matches of a kind (None: both); `is_instance` marks the instance rows."""
        if kind is None or not len(self.rows):
            return self
        kept = is_instance(self.rows) == (kind is RowKind.INSTANCE)
        return Matches(self.rows[kept], self.coverage[kept], self.own[kept])


NO_MATCHES = Matches(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class WordPart:
    """The words of the first `rows` rows of one part, some of which are dead.

    The row at place p has the number `first` + p, or else `numbers[p]`. `posted` are the places of
    rows that were posted since the training, ascending; None: all.
    """

    index: WordIndex
    rows: int
    dead: Tombstones
    first: int = 0
    numbers: Rows | None = None
    posted: Rows | None = None

    def places(self, word: str) -> Indices:
        """Return the places of the alive rows that contain a word, ascending."""
        return self._alive(self._counted(word))

    def has(self, word: str) -> bool:
        """Return whether an alive row contains a word."""
        places = self._counted(word)
        return bool(len(self._alive(places[:_FIRST])) or len(self._alive(places[_FIRST:])))

    @property
    def has_posted(self) -> bool:
        """Whether rows were posted."""
        return self.rows > 0 if self.posted is None else len(self.posted) > 0

    def numbered(self, places: Indices) -> Rows:
        """Return the numbers of the rows at `places`."""
        return places + np.int64(self.first) if self.numbers is None else self.numbers[places]

    def are_posted(self, places: Indices) -> Bools:
        """Return which rows at `places` were posted."""
        posted = self.posted
        return np.ones(len(places), bool) if posted is None else contained(places, posted)

    def containing(self, chunk: Chunk) -> Indices:
        """Return the places of the rows that contain a chunk as a whole or in pieces, ascending."""
        whole = self.places(chunk.whole)
        if not chunk.pieces:
            return whole
        return np.union1d(whole, common([self.places(piece) for piece in chunk.pieces]))

    def covered(self, places_of_words: Sequence[Indices]) -> tuple[Rows, Rows]:
        """Return the rows that have no other words than these, and their numbers of words."""
        places, counts = np.unique(np.concatenate(places_of_words), return_counts=True)
        only = counts == self.index.sizes(places)
        return self.numbered(places[only]), counts[only]

    def _counted(self, word: str) -> Indices:
        """Return the places of the rows of this view that contain a word, dead ones included."""
        number = self.index.find(word)
        places = _NOWHERE if number is None else self.index.places(number)
        if len(places) and places[-1] >= self.rows:  # written after this view
            return places[: int(np.searchsorted(places, self.rows))]
        return places

    def _alive(self, places: Indices) -> Indices:
        alive = self.dead.alive
        if alive is None or not len(places):
            return places
        bits: Bools = (alive[places >> 3] >> (places & 7).astype(np.uint8) & 1).astype(bool)
        return np.asarray(places[bits], np.int32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Lexicon:
    """The words of a view, from those of its parts, and behind them those of a dictionary.

    `masses` says how much rows [b] weigh as texts: a query that was clicked often is no typo.
    """

    parts: Sequence[WordPart]
    dictionary: Dictionary = NO_DICTIONARY
    masses: Callable[[Rows], Doubles] = lambda rows: np.ones(len(rows))

    @cached_property
    def rows(self) -> int:
        """The number of alive rows."""
        return sum(part.rows - part.dead.count for part in self.parts)

    @cached_property
    def has_posted(self) -> bool:
        """Whether rows were posted."""
        return any(part.has_posted for part in self.parts)

    def frequency(self, word: str) -> int:
        """Return the number of alive rows that contain a word."""
        return sum(map(len, self._places(word)))

    def knows(self, word: str) -> bool:
        """Return whether an alive row contains a word."""
        return any(part.has(word) for part in self.parts)

    def is_known(self, word: str) -> bool:
        """Return whether an alive row contains a word, or the dictionary has it."""
        return self.knows(word) or self.dictionary.rank(word) is not None

    def share(self, word: str) -> float:
        """Return the share of texts that contain a word, P(word) of the noisy channel.

        It is the share of rows, each with its mass. A word of the dictionary has `BEHIND` times its
        share of other texts as well, by Zipf's law.
        """
        rank = self.dictionary.rank(word)
        real = 0.0 if rank is None else BEHIND / (rank + ZIPF)
        return self._mass(word) / max(1, self.rows) + real

    def _mass(self, word: str) -> float:
        """Return the mass of the alive rows that contain a word, estimated if there are many."""
        rows, weighed = 0, []
        for part, places in zip(self.parts, self._places(word), strict=True):
            rows += len(places)
            weighed.append(part.numbered(places[:MOST_WEIGHED]))
        return rows * float(self.masses(np.concatenate(weighed)).mean()) if rows else 0.0

    def together(self, one: str, other: str) -> int:
        """Return the number of alive rows that contain both words."""
        total = 0
        for places in zip(self._places(one), self._places(other), strict=True):
            few, many = sorted(places, key=len)
            total += int(np.count_nonzero(contained(few, many)))
        return total

    def matches(self, query: str, *, share: float) -> Matches:
        """Return the rows that share words with a query, the `MOST_MATCHES` best.

        If words of trained rows add nothing (a `share` of 0), such rows may be left out.
        """
        words = words_of(query)[:MOST_WORDS]
        alone = self.has_posted or any(map(is_code, words))
        if not words or not (share or alone):
            return NO_MATCHES
        found = sorted((self._word(word) for word in words), key=lambda one: one.rows)  # stable
        rows = self.rows
        rarity = [math.log1p((rows - one.rows + 0.5) / (one.rows + 0.5)) for one in found]
        weights = [one / sum(rarity) for one in rarity]
        listed = _listed(found)
        matched = [
            _matched(part, place, found, weights, listed) for place, part in enumerate(self.parts)
        ]
        return _best(*map(np.concatenate, zip(*matched, strict=True)))

    def _word(self, word: str) -> _Word:
        places = list(self._places(word))
        return _Word(is_code=is_code(word), rows=sum(map(len, places)), places=places)

    def containing(self, text: str) -> Rows:
        """Return the rows that contain all words of a text, ascending; none if it has no words.

        A row contains a compound or a code as a whole, or all of its pieces.
        """
        chunks = list(chunks_of(text))
        found = [
            part.numbered(common([part.containing(chunk) for chunk in chunks]))
            for part in self.parts
            if chunks
        ]
        return np.sort(np.concatenate(found)) if found else NO_MATCHES.rows

    def covered(self, query: str) -> Rows:
        """Return the rows all of whose words are in a query, ascending.

        If there are more than `MOST_COVERED`, those with the most words are returned.
        """
        words = _with_compounds(query)
        found = [
            part.covered([part.places(word) for word in words]) for part in self.parts if words
        ]
        if not found:
            return NO_MATCHES.rows
        rows, sizes = map(np.concatenate, zip(*found, strict=True))
        return np.sort(rows[np.lexsort((-rows, -sizes))[:MOST_COVERED]])

    def alike(self, word: str, distance: int) -> list[Alike]:
        """Return the known words within an edit distance of another word.

        It is the distance of optimal string alignment, in which a transposition is one edit. Words
        with digits, with fewer than three letters, or without a common bigram are left out.
        """
        bigrams, most = bigrams_of(word), _BIGRAMS_AN_EDIT * distance
        near: dict[str, None] = {}
        for index in (*(part.index for part in self.parts), self.dictionary.words):
            words = list(map(index.word, index.sharing(bigrams, most).tolist()))
            found = process.extract(
                letters_of(word),
                list(map(letters_of, words)),
                scorer=OSA.distance,
                score_cutoff=distance,
                limit=None,
            )
            near |= dict.fromkeys(words[place] for _, _, place in found)
        alike = (Alike(known, self.frequency(known), self.share(known)) for known in near)
        return [one for one in alike if one.share]

    def _places(self, word: str) -> Iterator[Indices]:
        return (part.places(word) for part in self.parts)


class _Word(NamedTuple):
    """A word of a query, the number of rows that contain it, and their places, by part."""

    is_code: bool
    rows: int
    places: list[Indices]


def _with_compounds(query: str) -> list[str]:
    """Return the words of a query, and two adjacent ones as one, as they are in a compound."""
    chunks = list(chunks_of(query))[:MOST_WORDS]
    pieces = [piece for chunk in chunks for piece in chunk.pieces or (chunk.whole,)]
    words = [word for chunk in chunks for word in chunk.words]
    return list(dict.fromkeys([*words, *map("".join, pairwise(pieces))]))


def is_code(word: str) -> bool:
    """Return whether a word has a digit: encoders know little about codes and numbers."""
    return any(map(str.isdigit, word))


def _listed(words: Sequence[_Word]) -> list[_Word]:
    """Return the rarest words, whose rows are looked at: as many as have `_LISTED` rows in all.

    If the rarest known word has more rows, its newest ones are looked at.
    """
    listed, rows = [], 0
    for word in words:
        if rows and rows + word.rows > _LISTED:
            break
        rows += word.rows
        listed.append(word)
    if rows > _LISTED:
        listed[-1] = _newest(listed[-1])
    return listed


def _newest(word: _Word) -> _Word:
    """Return a word with the newest `_LISTED` of its rows."""
    places, missing = list(word.places), _LISTED
    for part in reversed(range(len(places))):
        places[part] = places[part][max(0, len(places[part]) - missing) :]
        missing -= len(places[part])
    return word._replace(rows=_LISTED, places=places)


def _matched(
    part: WordPart,
    place: int,
    words: Sequence[_Word],
    weights: Sequence[float],
    listed: Sequence[_Word],
) -> tuple[Rows, Doubles, Bools]:
    """Return one part's rows that match, their coverage, and whether words alone may find them.

    `weights` are the shares of the words in the coverage of a query, one after the other.
    """
    rows = np.unique(np.concatenate([word.places[place] for word in listed]))
    coverage, has_all = np.zeros(len(rows)), np.full(len(rows), any(one.is_code for one in words))
    if len(rows):
        for word, weight in zip(words, weights, strict=True):
            inside = contained(rows, word.places[place])
            coverage += weight * inside
            has_all &= inside
    return part.numbered(rows), coverage, part.are_posted(rows) | has_all


def contained(some: Indices | Rows, many: Indices | Rows) -> Bools:
    """Return which of some places [n] are among others; the others ascend."""
    if not len(many):
        return np.zeros(len(some), bool)
    found = np.minimum(np.searchsorted(many, some), len(many) - 1)
    return np.asarray(many[found] == some)


def _best(rows: Rows, coverage: Doubles, alone: Bools) -> Matches:
    """Return the best matches of all rows [n]; of equally good ones, the newest.

    A row that words `alone` can find is identified by them if few rows match at least as well.
    """
    order = np.lexsort((-rows, -coverage))
    rows, coverage, alone = rows[order], coverage[order], alone[order]
    as_good = np.searchsorted(-coverage, -coverage, side="right")
    own = OWN * coverage * alone * np.minimum(1.0, _FEW_MATCHES / np.maximum(as_good, 1))
    best = np.argsort(-(coverage + own), kind="stable")[:MOST_MATCHES]
    best = best[np.argsort(rows[best])]
    return Matches(rows[best], coverage[best], own[best])
