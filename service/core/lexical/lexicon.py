"""The words of all alive rows of one view: which rows match a query, and which words are alike.

Dead rows do not count, so the answers depend on the log alone, not on which rows are sealed.

Shapes: m matched rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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
MOST_MATCHES = 64  # rows of a query, and those that match as well as the last of these
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


class Match(NamedTuple):
    """The rows that words find, and what words add to the cosines of any rows.

    `added` takes rows [n], found by words or not, and returns what is added [n].
    """

    rows: Rows  # [m], ascending
    added: Callable[[Rows], Doubles]

    def of_kind(self, kind: RowKind | None, is_instance: Callable[[Rows], Bools]) -> Match:
        """Return the match with rows of a kind (None: both); `is_instance` marks instance rows."""
        if kind is None or not len(self.rows):
            return self
        return self._replace(rows=self.rows[is_instance(self.rows) == (kind is RowKind.INSTANCE)])

    def naming(self, rows: Rows) -> Match:
        """Return the match with further rows that take part."""
        return self._replace(rows=np.union1d(self.rows, rows))


# Of a query without words, or whose words add nothing.
NO_MATCH = Match(np.zeros(0, np.int64), lambda rows: np.zeros(len(rows)))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Matches:
    """How well the words of rows match those of a query.

    The coverage of a row is the rarity of the words that it shares with the query, as a share of
    that of all words of the query. The rarity is BM25's (Robertson and Zaragoza, 2009).

    `rows` are those with the rarest words. `own` is above 0 for rows that a vector may not find:
    posted rows, whose words the encoder may not know, and rows with all words of a query that has a
    code. If a trained row consists of the query's words, `own` lifts no other row over it.
    """

    rows: Rows  # [m], ascending
    coverage: Doubles  # [m], in (0, 1]
    own: Doubles  # [m], in [0, OWN]
    words: Sequence[_Word] = ()
    parts: Sequence[WordPart] = ()

    def adding(self, share: float) -> Match:
        """Return the `MOST_MATCHES` rows to whose cosines words add most, and equally good ones.

        Words add `share` times a row's coverage, and its `own`.
        """
        if not self.words or not (share or self.own.any()):
            return NO_MATCH
        adds = share * self.coverage + self.own
        least = np.partition(adds, -MOST_MATCHES)[-MOST_MATCHES] if len(adds) > MOST_MATCHES else 0
        return Match(self.rows[(adds > 0.0) & (adds >= least)], partial(self._added, share))

    def _added(self, share: float, rows: Rows) -> Doubles:
        added = share * self._coverage_of(rows) if share else np.zeros(len(rows))
        if len(self.rows):
            place = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
            added += np.where(self.rows[place] == rows, self.own[place], 0.0)
        return added

    def _coverage_of(self, rows: Rows) -> Doubles:
        """Return the coverage of any rows [n]; it has the same bits as in `coverage`."""
        coverage = np.zeros(len(rows))
        for number, part in enumerate(self.parts):
            inside, places = part.places_of(rows)
            for word in self.words if len(inside) else ():
                coverage[inside] += word.weight * contained(places, word.places[number])
        return coverage


NO_MATCHES = Matches(rows=np.zeros(0, np.int64), coverage=np.zeros(0), own=np.zeros(0))


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

    def places_of(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return which of `rows` are in this part, as places in `rows`, and their places here."""
        if self.numbers is None:
            places = rows - self.first
            inside = np.flatnonzero((places >= 0) & (places < self.rows))
            return inside, places[inside]
        numbers = self.numbers[: self.rows]
        inside = np.flatnonzero(contained(rows, numbers))
        return inside, np.searchsorted(numbers, rows[inside])

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
    """The words of a view's parts; a dictionary adds words that no row has.

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
        """Return how the rows match the words of a query.

        If words of trained rows add nothing (a `share` of 0), such rows may be left out.
        """
        words = words_of(query)
        has_code = any(map(is_code, words[:MOST_WORDS]))
        if not words or not (share or self.has_posted or has_code):
            return NO_MATCHES
        found = self._words(words[:MOST_WORDS])
        listed = _listed(found, self.parts, size=len(words))
        matched = [
            _matched(part, number, found, rows, size=len(words))
            for number, (part, rows) in enumerate(zip(self.parts, listed, strict=True))
        ]
        rows, coverage, posted, has_all, is_query = map(np.concatenate, zip(*matched, strict=True))
        alone = posted | (has_all & has_code)
        if (is_query & ~posted).any():
            alone = is_query & has_code
        own = OWN * coverage * alone * _identity(coverage)
        order = np.argsort(rows)
        return Matches(
            rows=rows[order],
            coverage=coverage[order],
            own=own[order],
            words=found,
            parts=self.parts,
        )

    def _words(self, words: Sequence[str]) -> list[_Word]:
        """Return the words of a query, the rarest first; their weights in a coverage sum to 1."""
        places = [list(self._places(word)) for word in words]
        rows = [sum(map(len, of_word)) for of_word in places]
        rarity = [math.log1p((self.rows - one + 0.5) / (one + 0.5)) for one in rows]
        found = [
            _Word(count, of_word, rare / sum(rarity))
            for count, of_word, rare in zip(rows, places, rarity, strict=True)
        ]
        return sorted(found, key=lambda one: one.rows)  # stable

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
        return np.sort(np.concatenate(found)) if found else NO_MATCH.rows

    def covered(self, query: str) -> Rows:
        """Return the rows all of whose words are in a query, ascending.

        If there are more than `MOST_COVERED`, those with the most words are returned.
        """
        words = _with_compounds(query)
        found = [
            part.covered([part.places(word) for word in words]) for part in self.parts if words
        ]
        if not found:
            return NO_MATCH.rows
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
    """A word of a query: the places of the rows that contain it, by part, and their number.

    `weight` is its share in the coverage of a row.
    """

    rows: int
    places: list[Indices]
    weight: float


def _with_compounds(query: str) -> list[str]:
    """Return the words of a query, and two adjacent ones as one, as they are in a compound."""
    chunks = list(chunks_of(query))[:MOST_WORDS]
    pieces = [piece for chunk in chunks for piece in chunk.pieces or (chunk.whole,)]
    words = [word for chunk in chunks for word in chunk.words]
    return list(dict.fromkeys([*words, *map("".join, pairwise(pieces))]))


def is_code(word: str) -> bool:
    """Return whether a word has a digit: encoders know little about codes and numbers."""
    return any(map(str.isdigit, word))


def _listed(words: Sequence[_Word], parts: Sequence[WordPart], *, size: int) -> list[Indices]:
    """Return the places of the rows that are looked at, ascending, by part.

    They have one of the rarest words, whose rows are `_LISTED` in all. If the rarest known word has
    more, they are the rows with this word and `size` words in all, as many as the query: all other
    rows are found by their vectors, or not at all. So no choice depends on the order of rows.
    """
    listed, rows = [], 0
    for word in words:
        if rows and rows + word.rows > _LISTED:
            break
        rows += word.rows
        listed.append(word.places)
    places = [np.unique(np.concatenate(of_part)) for of_part in zip(*listed, strict=True)]
    if rows > _LISTED:
        with_parts = zip(parts, places, strict=True)
        places = [found[part.index.sizes(found) == size] for part, found in with_parts]
    return places


def _matched(
    part: WordPart, number: int, words: Sequence[_Word], places: Indices, *, size: int
) -> tuple[Rows, Doubles, Bools, Bools, Bools]:
    """Return the rows at `places` of a part, by its number, and how they match a query's `words`.

    That is their coverage, whether they were posted, whether they have all words of the query, and
    whether they have no other words: the query has `size` in all.
    """
    coverage, has_all = np.zeros(len(places)), np.ones(len(places), bool)
    for word in words if len(places) else ():
        inside = contained(places, word.places[number])
        coverage += word.weight * inside
        has_all &= inside
    is_query = has_all.copy()
    is_query[has_all] = part.index.sizes(places[has_all]) == size
    return part.numbered(places), coverage, part.are_posted(places), has_all, is_query


def _identity(coverage: Doubles) -> Doubles:
    """Return how surely words identify each row [m]: by the rows that match at least as well."""
    as_good = len(coverage) - np.searchsorted(np.sort(coverage), coverage)
    return np.minimum(1.0, _FEW_MATCHES / np.maximum(as_good, 1))


def contained(some: Indices | Rows, many: Indices | Rows) -> Bools:
    """Return which of some places [n] are among others; the others ascend."""
    if not len(many):
        return np.zeros(len(some), bool)
    found = np.minimum(np.searchsorted(many, some), len(many) - 1)
    return np.asarray(many[found] == some)
