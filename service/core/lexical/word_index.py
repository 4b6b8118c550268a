"""An inverted index: which rows of a part of the memory contain a word, and which words are alike.

The index of a bundle or of a sealed part never changes (`FrozenWords`). The index of live rows
grows with them (`LiveWords`): a reader passes the number of rows that its view counts.

Only words that a misspelled one may stand for have bigrams: at least three letters, no digit and no
symbol. The letters of a Hangul syllable are its two or three jamo, as they are typed.

Shapes: n rows, W words, P postings, G distinct bigrams, E entries of bigrams.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from sys import getsizeof
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from service.core.growing import Growing
from service.core.lexical.words import is_spelled, words_of
from service.core.types import Indices, Rows

LEAST_LETTERS = 3  # of a word that has bigrams
_HANGUL = re.compile("[\uac00-\ud7a3]")
_BLOCK = 32  # words
# Estimated bytes of main memory of live words; `test_live_bytes.py` compares them with the growth.
_BYTES_A_WORD = 300  # the word, its entries in maps, its first rows
_BYTES_A_BIGRAM = 290  # its entry in the map, its first words
_BYTES_AN_ENTRY = 6  # of a word under a known bigram
_BYTES_A_POSTING = 12  # of a row under a known word, and of the word in the row
_CODE_POINT_BITS = 21
_NONE: Indices = np.zeros(0, np.int32)


class _Words(Protocol):
    """Words by number: a tuple, or a store on disk."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> str: ...
    def __iter__(self) -> Iterator[str]: ...


class Restricted(NamedTuple):
    """The postings of m rows: distinct words, and for each posting a word and a place below m."""

    words: list[str]
    word_of: Rows  # [p], places in `words`
    row_of: Rows  # [p]


class WordIndex(Protocol):
    """The words of a part's rows. Words have numbers, which mean nothing in another part."""

    def find(self, word: str) -> int | None:
        """Return the number of a word, or None if no row has it."""
        ...

    def word(self, number: int) -> str:
        """Return the word with this number."""
        ...

    def places(self, number: int) -> Indices:
        """Return the places of the rows that contain a word, ascending."""
        ...

    def sizes(self, places: Indices) -> Rows:
        """Return the numbers of distinct words of rows at `places` that have some."""
        ...

    def sharing(self, bigrams: Sequence[int], most: int) -> Rows:
        """Return the numbers of words that share one of the distinct `bigrams`, or more.

        At most `most` bigrams are only in the word, and as many only among `bigrams`.
        """
        ...

    def restricted(self, rows: Rows) -> Restricted:
        """Return the postings of the rows at places `rows` [m], ascending."""
        ...


def letters_of(word: str) -> str:
    """Return a folded word letter by letter: the syllables of Hangul as jamo."""
    if word.isascii() or not _HANGUL.search(word):
        return word
    return unicodedata.normalize("NFD", word)


def bigrams_of(word: str) -> list[int]:
    """Return the distinct bigrams of letters, with a boundary (0) before and after the word."""
    points = [0, *map(ord, letters_of(word)), 0]
    pairs = pairwise(points)
    return list(dict.fromkeys(first << _CODE_POINT_BITS | second for first, second in pairs))


def has_bigrams(word: str) -> bool:
    """Return whether a misspelled word may stand for this one."""
    return len(letters_of(word)) >= LEAST_LETTERS and is_spelled(word)


def common(found: Sequence[Indices]) -> Indices:
    """Return the places that are in all of several ascending arrays, at least one."""
    rarest, *others = sorted(found, key=len)
    for places in others if len(rarest) else ():
        nearest = np.minimum(np.searchsorted(places, rarest), len(places) - 1)
        rarest = rarest[places[nearest] == rarest]
    return rarest


@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenWords:
    """The words of n rows in plain or memory-mapped arrays; `words` [W] are ascending.

    Word w is in the rows `postings[indptr[w] : indptr[w + 1]]`, and bigram `bigrams[g]` is in the
    words `bigram_words[bigram_indptr[g] : bigram_indptr[g + 1]]`, all ascending.
    """

    words: _Words
    indptr: NDArray[np.int64]  # [W + 1]
    postings: Indices  # [P]
    bigrams: NDArray[np.int64]  # [G], ascending
    bigram_indptr: NDArray[np.int64]  # [G + 1]
    bigram_words: Indices  # [E]

    def find(self, word: str) -> int | None:
        """Return the number of a word, or None if no row has it."""
        block = _BLOCK * max(0, bisect_right(self._landmarks, word) - 1)
        place = bisect_left(self.words, word, block, min(block + _BLOCK, len(self.words)))
        return place if place < len(self.words) and self.words[place] == word else None

    @cached_property
    def size(self) -> int:
        """The bytes of main memory that the words and arrays take, if they are in main memory."""
        arrays = self.indptr, self.postings, self.bigrams, self.bigram_indptr, self.bigram_words
        later = 4 * len(self.words) + 8 * len(self.postings)  # `_distinct` and `_sizes`
        words = sum(8 + getsizeof(word) for word in self.words)
        return words + later + sum(array.nbytes for array in arrays)

    @cached_property
    def _landmarks(self) -> list[str]:
        """The first word of each block, in main memory: reading a word from a file takes longer."""
        return [self.words[number] for number in range(0, len(self.words), _BLOCK)]

    def word(self, number: int) -> str:
        """Return the word with this number."""
        return self.words[number]

    def places(self, number: int) -> Indices:
        """Return the places of the rows that contain a word, ascending."""
        return self.postings[self.indptr[number] : self.indptr[number + 1]]

    def places_of_all(self, text: str) -> Rows | None:
        """Return the places of the rows that contain all words of a text, ascending.

        Returns None for a text without words.
        """
        numbers = [self.find(word) for word in words_of(text)]
        if not numbers:
            return None
        known = [self.places(number) for number in numbers if number is not None]
        if len(known) < len(numbers):
            return np.zeros(0, np.int64)
        return common(known).astype(np.int64)

    def sizes(self, places: Indices) -> Rows:
        """Return the numbers of distinct words of rows at `places` that have some."""
        return self._sizes[places]

    @cached_property
    def _sizes(self) -> Rows:
        return np.bincount(self.postings)

    def sharing(self, bigrams: Sequence[int], most: int) -> Rows:
        """Return the numbers of words that share one of the distinct `bigrams`, or more.

        At most `most` bigrams are only in the word, and as many only among `bigrams`.
        """
        if not len(self.bigrams):
            return np.zeros(0, np.int64)
        wanted = np.array(bigrams, np.int64)
        found = np.minimum(np.searchsorted(self.bigrams, wanted), len(self.bigrams) - 1)
        found = found[self.bigrams[found] == wanted]
        entries = [
            self.bigram_words[start:stop]
            for start, stop in zip(
                self.bigram_indptr[found].tolist(),
                self.bigram_indptr[found + 1].tolist(),
                strict=True,
            )
        ]
        return _occurring(entries, self._distinct, least=len(bigrams) - most, most=most)

    @cached_property
    def _distinct(self) -> Indices:
        """The number of distinct bigrams of each word, [W]."""
        return np.bincount(self.bigram_words, minlength=len(self.words)).astype(np.int32)

    def restricted(self, rows: Rows) -> Restricted:
        """Return the postings of the rows at places `rows` [m], ascending."""
        return _restricted(self.word, np.diff(self.indptr), self.postings, rows)


class LiveWords:
    """The words of a block of live rows; words are numbered in the order of their first row.

    `size` estimates the bytes of main memory that they take.
    """

    def __init__(self) -> None:
        """Start without rows."""
        self.size = 0
        self._numbers: dict[str, int] = {}
        self._words: list[str] = []
        self._postings: list[Growing[np.int32]] = []
        self._by_bigram: dict[int, Growing[np.int32]] = {}
        self._distinct = Growing(np.int32)  # the number of distinct bigrams of each word
        self._rows: list[tuple[int, ...]] = []  # the words of each row

    def write(self, start: int, texts: Iterable[str]) -> None:
        """Write rows at `start`, over rows that a dropped draft left there."""
        for words in self._rows[start:]:
            self.size -= _BYTES_A_POSTING * len(words)
            for number in words:
                self._postings[number].drop_from(start)
        del self._rows[start:]
        for place, text in enumerate(texts, start):
            row = tuple(map(self._number, words_of(text)))
            for number in row:
                self._postings[number].append(place)
            self._rows.append(row)
            self.size += _BYTES_A_POSTING * len(row)

    def find(self, word: str) -> int | None:
        """Return the number of a word, or None if no row ever had it."""
        return self._numbers.get(word)

    def word(self, number: int) -> str:
        """Return the word with this number."""
        return self._words[number]

    def places(self, number: int) -> Indices:
        """Return the places of the rows that contain a word, ascending."""
        return self._postings[number].view()

    def sizes(self, places: Indices) -> Rows:
        """Return the numbers of distinct words of rows at `places` that have some."""
        return np.array([len(self._rows[place]) for place in places.tolist()], np.int64)

    def sharing(self, bigrams: Sequence[int], most: int) -> Rows:
        """Return the numbers of words that share one of the distinct `bigrams`, or more.

        At most `most` bigrams are only in the word, and as many only among `bigrams`.
        """
        distinct = self._distinct.view()
        entries = [self._by_bigram[one].view() for one in bigrams if one in self._by_bigram]
        return _occurring(entries, distinct, least=len(bigrams) - most, most=most)

    def restricted(self, rows: Rows) -> Restricted:
        """Return the postings of the rows at places `rows` [m], ascending."""
        postings = [one.view() for one in self._postings]
        counts = np.array([len(one) for one in postings], np.int64)
        return _restricted(self.word, counts, np.concatenate([_NONE, *postings]), rows)

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is None:
            number = len(self._words)
            self._words.append(word)
            self._postings.append(Growing(np.int32))
            bigrams, known = bigrams_of(word) if has_bigrams(word) else [], len(self._by_bigram)
            for bigram in bigrams:
                self._by_bigram.setdefault(bigram, Growing(np.int32)).append(number)
            of_new = _BYTES_A_BIGRAM * (len(self._by_bigram) - known)
            self.size += _bytes_of_word(word) + of_new + _BYTES_AN_ENTRY * len(bigrams)
            self._distinct.append(len(bigrams))
            self._numbers[word] = number  # last: readers look here first
        return number


def most_bytes(text: str) -> int:
    """Return the most bytes that the words of a row with this text may add to live words.

    That is if none of them was known before, nor a bigram beyond ASCII.
    """
    size = 0
    for word in words_of(text):
        beyond = 0 if word.isascii() else sum(character > "\x7f" for character in word) + 1
        entries = _BYTES_AN_ENTRY * (len(word) + 1)
        size += _BYTES_A_POSTING + _bytes_of_word(word) + entries + _BYTES_A_BIGRAM * beyond
    return size


def _bytes_of_word(word: str) -> int:
    return _BYTES_A_WORD + getsizeof(word)


def index_texts(texts: Iterable[str]) -> FrozenWords:
    """Return the words of texts [n]."""
    numbers: dict[str, int] = {}
    words_of_postings, places = array("i"), array("i")
    for place, text in enumerate(texts):
        for word in words_of(text):
            words_of_postings.append(numbers.setdefault(word, len(numbers)))
            places.append(place)
    return _frozen(list(numbers), np.array(words_of_postings, np.int32), np.array(places, np.int32))


def gathered(pieces: Sequence[tuple[WordIndex, Rows]]) -> FrozenWords:
    """Return the words of some rows of several indexes, one index after the other.

    Each piece has an index and the places of its rows, ascending.
    """
    numbers: dict[str, int] = {}
    words_of_postings, places, first = [_NONE], [_NONE], 0
    for index, rows in pieces:
        words, kept, place = index.restricted(rows)
        known = [numbers.setdefault(word, len(numbers)) for word in words]
        words_of_postings.append(np.array(known, np.int32)[kept])
        places.append((place + first).astype(np.int32))
        first += len(rows)
    return _frozen(list(numbers), np.concatenate(words_of_postings), np.concatenate(places))


def _restricted(
    word: Callable[[int], str], counts: NDArray[np.int64], postings: Indices, rows: Rows
) -> Restricted:
    """Return the postings of `rows` [m] among those of W words, each with `counts` [W]."""
    places = np.searchsorted(rows, postings)
    places[places == len(rows)] = 0
    kept = rows[places] == postings if len(rows) else np.zeros(len(postings), bool)
    numbers, word_of = np.unique(
        np.repeat(np.arange(len(counts)), counts)[kept], return_inverse=True
    )
    return Restricted([word(number) for number in numbers.tolist()], word_of, places[kept])


def _frozen(words: Sequence[str], occurrences: Indices, places: Indices) -> FrozenWords:
    """Return the index of postings [P]: a number in `words`, and the place of its row, of each."""
    order = sorted(range(len(words)), key=words.__getitem__)
    rank = np.empty(len(words), np.int32)
    rank[order] = np.arange(len(words), dtype=np.int32)
    occurrences = rank[occurrences] if len(words) else occurrences
    ascending = tuple(words[number] for number in order)
    by_word = np.lexsort((places, occurrences))
    indptr = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.bincount(occurrences, minlength=len(words)), out=indptr[1:])
    bigrams, bigram_indptr, bigram_words = _bigrams(ascending)
    return FrozenWords(
        words=ascending,
        indptr=indptr,
        postings=places[by_word],
        bigrams=bigrams,
        bigram_indptr=bigram_indptr,
        bigram_words=bigram_words,
    )


def _bigrams(words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64], Indices]:
    """Return the distinct bigrams [G] of words [W], and the words [E] of each as a CSR matrix."""
    listed = [number for number, word in enumerate(words) if has_bigrams(word)]
    spelled = [letters_of(words[number]) for number in listed]
    lengths = np.array([len(letters) + 1 for letters in spelled], np.int64)
    joined = "\0" + "".join(f"{letters}\0" for letters in spelled)
    points = np.frombuffer(joined.encode("utf-32-le"), np.uint32).astype(np.int64)
    keys = points[:-1] << _CODE_POINT_BITS | points[1:]
    numbers = np.repeat(np.array(listed, np.int32), lengths)
    order = np.lexsort((numbers, keys))
    keys, numbers = keys[order], numbers[order]
    new = np.ones(len(keys), bool)
    new[1:] = (keys[1:] != keys[:-1]) | (numbers[1:] != numbers[:-1])
    keys, numbers = keys[new], numbers[new]
    distinct, starts = np.unique(keys, return_index=True)
    return distinct, np.append(starts, len(keys)).astype(np.int64), numbers


def _occurring(entries: Sequence[Indices], of: Indices, *, least: int, most: int) -> Rows:
    """Return the numbers that occur once or more, and at least `least` times, in all entries.

    Number w occurs at most `most` times less than `of[w]`; later numbers are left out.
    """
    if not entries:
        return np.zeros(0, np.int64)
    joined, words = np.concatenate(entries), len(of)
    counts = np.bincount(joined[joined < words], minlength=words)
    return np.flatnonzero((counts >= max(1, least)) & (counts >= of - most))
