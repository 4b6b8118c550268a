"""The words of all alive rows of one view: how many rows have a word, and which words are alike.

Dead rows do not count, so the answers depend on the log alone, not on which rows are sealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import OSA

from service.core.index.protocol import Tombstones
from service.core.lexical.word_index import WordIndex, bigrams_of
from service.core.types import Bools, Indices

_BIGRAMS_AN_EDIT = 3  # the most that one edit changes: those around a transposition
_FIRST = 64  # places of a word that are looked at first: most often one of these rows is alive
_NOWHERE: Indices = np.zeros(0, np.int32)


class Alike(NamedTuple):
    """A known word near a misspelled one; the better ones are less."""

    distance: int
    minus_rows: int
    word: str


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class WordPart:
    """The words of the first `rows` rows of one part, some of which are dead."""

    index: WordIndex
    rows: int
    dead: Tombstones

    def places(self, word: str) -> Indices:
        """Return the places of the alive rows that contain a word, ascending."""
        return self._alive(self._counted(word))

    def has(self, word: str) -> bool:
        """Return whether an alive row contains a word."""
        places = self._counted(word)
        return bool(len(self._alive(places[:_FIRST])) or len(self._alive(places[_FIRST:])))

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


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Lexicon:
    """The words of a view, from those of its parts."""

    parts: Sequence[WordPart]

    def frequency(self, word: str) -> int:
        """Return the number of alive rows that contain a word."""
        return sum(map(len, self._places(word)))

    def knows(self, word: str) -> bool:
        """Return whether an alive row contains a word."""
        return any(part.has(word) for part in self.parts)

    def together(self, one: str, other: str) -> int:
        """Return the number of alive rows that contain both words."""
        total = 0
        for places in zip(self._places(one), self._places(other), strict=True):
            few, many = sorted(places, key=len)
            if len(few):
                found = np.minimum(np.searchsorted(many, few), len(many) - 1)
                total += int(np.count_nonzero(many[found] == few))
        return total

    def alike(self, word: str, distance: int) -> list[Alike]:
        """Return the known words within an edit distance of another word, the best first.

        It is the distance of optimal string alignment, in which a transposition is one edit. Words
        with digits, with fewer than three characters, or without a common bigram are left out.
        """
        bigrams = bigrams_of(word)
        least = max(1, len(bigrams) - _BIGRAMS_AN_EDIT * distance)
        edits: dict[str, int] = {}
        for part in self.parts:
            words = list(map(part.index.word, part.index.sharing(bigrams, least).tolist()))
            found = process.extract(
                word, words, scorer=OSA.distance, score_cutoff=distance, limit=None
            )
            edits |= {known: int(steps) for known, steps, _ in found}
        counted = ((steps, self.frequency(known), known) for known, steps in edits.items())
        return sorted(Alike(steps, -rows, known) for steps, rows, known in counted if rows)

    def _places(self, word: str) -> Iterator[Indices]:
        return (part.places(word) for part in self.parts)
