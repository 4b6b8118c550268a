"""Compares a query's text with the candidates' texts: trigrams, words, first words.

The installation compiles `texts.c` into `libtexts.so` (see `hatch_build.py`).

Shapes: k labels, W words with known rarity.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from service.core.prediction.ranking import open_library
from service.core.types import Doubles

LIBRARY = Path(__file__).with_name("libtexts.so")
_OUT_OF_MEMORY = -1
_FNV_BASIS, _FNV_PRIME, _64_BITS = 14695981039346656037, 1099511628211, 2**64 - 1

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, eq=False)
class WordRarity:
    """The logarithm of each word's inverse frequency among the labels of a catalog.

    `hashes` [W] of the words are ascending, and `rarity` [W] belongs to them. `unknown` is the
    rarity of all other words.
    """

    hashes: Hashes
    rarity: Doubles
    unknown: float

    @classmethod
    def among(cls, labels: Iterable[str]) -> Self:
        """Return the rarity of words, from the number of `labels` that contain each word."""
        total, counts = 0, Counter[int]()
        for label in labels:
            total += 1
            counts.update(set(words_of(normalized(label))))
        ascending = sorted(counts)
        rarity = np.log((1.0 + total) / (1.0 + np.array([counts[word] for word in ascending])))
        return cls(
            hashes=np.array(ascending, np.uint64),
            rarity=rarity.astype(np.float64),
            unknown=float(np.log(1.0 + total)),
        )


class TextOverlap(NamedTuple):
    """Measures [k] of what a query shares with each of k labels, and of each text alone.

    Trigrams are counted within words. Words are summed by rarity. For the first words of both
    texts, the length of their common beginning is counted in characters.
    """

    common_trigrams: Doubles
    query_trigrams: Doubles
    label_trigrams: Doubles
    common_words: Doubles
    query_words: Doubles
    label_words: Doubles
    common_beginning: Doubles
    query_first_word: Doubles
    label_first_word: Doubles


class TextComparison:
    """Compares with `texts.c`. Its calls keep the interpreter's lock; see `ranking`."""

    def __init__(self) -> None:
        """Load the compiled library; raises `NotCompiled`."""
        self._compare = open_library(LIBRARY, "compare_texts")
        self._compare.restype = ctypes.c_int64
        pointer, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        self._compare.argtypes = [
            *(pointer, integer),  # the query's bytes
            *(pointer, pointer, integer),  # the labels' bytes, the end of each, their number
            *(pointer, pointer, integer, real),  # W words' hashes and rarity; other words' rarity
            pointer,  # written: the values of each label
        ]

    def __call__(self, query: str, labels: Sequence[str], rarity: WordRarity) -> TextOverlap:
        """Compare a query's text with the texts of labels [k]."""
        ours = normalized(query).encode()
        theirs = [normalized(label).encode() for label in labels]
        ends = np.cumsum([len(label) for label in theirs], dtype=np.int64)
        values = np.empty((len(theirs), len(TextOverlap._fields)))
        status = self._compare(
            *(ours, len(ours)),
            *(b"".join(theirs), ends.ctypes.data, len(theirs)),
            *(rarity.hashes.ctypes.data, rarity.rarity.ctypes.data, len(rarity.hashes)),
            *(rarity.unknown, values.ctypes.data),
        )
        if status == _OUT_OF_MEMORY:
            raise MemoryError("there is no memory to compare the texts of a query")
        return TextOverlap(*values.T)


def normalized(text: str) -> str:
    """Return the text in lower case, its words separated by one space."""
    return " ".join(text.lower().split())


def words_of(text: str) -> Iterable[int]:
    """Yield a hash (FNV-1a) per word: a run of letters, digits or characters beyond ASCII."""
    for word in re.findall(r"[a-zA-Z0-9_\x80-\U0010ffff]+", text):
        value = _FNV_BASIS
        for byte in word.encode():
            value = (value ^ byte) * _FNV_PRIME & _64_BITS
        yield value
