"""Compares a query's text with the candidates' texts: trigrams, words, first words.

The installation compiles `texts.c` into `libtexts.so` (see `hatch_build.py`). Without it, Python
computes the same, to the last bit, in twenty times the time.

Shapes: k labels, W words with known rarity.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from service.core.prediction.ranking import compiled_or
from service.core.types import Doubles

LIBRARY = Path(__file__).with_name("libtexts.so")
_OUT_OF_MEMORY = -1
_MARKS = ".,:;()[]\"'"
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

    def of(self, word: int) -> float:
        """Return the rarity of the word with this hash."""
        place = int(np.searchsorted(self.hashes, np.uint64(word)))
        if place < len(self.hashes) and int(self.hashes[place]) == word:
            return float(self.rarity[place])
        return self.unknown


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


Compare = Callable[[str, Sequence[str], WordRarity], TextOverlap]


def compare_in_python(query: str, labels: Sequence[str], rarity: WordRarity) -> TextOverlap:
    """Compare a query's text with the texts of labels [k]."""

    def parts(text: str) -> tuple[set[str], dict[int, float], str]:
        text = normalized(text)
        words = {word: rarity.of(word) for word in words_of(text)}
        return set(trigrams_of(text)), words, text.split(" ", 1)[0].strip(_MARKS)

    trigrams, words, first = parts(query)
    rows = [
        (
            len(trigrams & others),
            len(trigrams),
            len(others),
            # Added in the order of the words, as in the compiled function.
            sum((one for word, one in their_words.items() if word in words), 0.0),
            sum(words.values(), 0.0),
            sum(their_words.values(), 0.0),
            len(commonprefix((first, other))),  # noqa: RUF071 (of texts, not of paths)
            len(first),
            len(other),
        )
        for others, their_words, other in map(parts, labels)
    ]
    table = np.array(rows, np.float64).reshape(-1, len(TextOverlap._fields))
    return TextOverlap(*np.ascontiguousarray(table.T))


class CompiledCompare:
    """Compares with `texts.c`. Its calls keep the interpreter's lock; see `CompiledRanker`."""

    def __init__(self) -> None:
        """Load the compiled library.

        Raises `OSError` if it was not built, and `AttributeError` if another version was built.
        """
        self._compare = ctypes.PyDLL(str(LIBRARY)).compare_texts
        self._compare.restype = ctypes.c_int64
        pointer, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        self._compare.argtypes = [
            *(pointer, integer),  # the query's bytes
            *(pointer, pointer, integer),  # the labels' bytes, the end of each, their number
            *(pointer, pointer, integer, real),  # W words' hashes and rarity; other words' rarity
            pointer,  # written: the values of each label
        ]

    def __call__(self, query: str, labels: Sequence[str], rarity: WordRarity) -> TextOverlap:
        """Return what `compare_in_python` does."""
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


def open_compare() -> Compare:
    """Return the compiled function, or Python's with a warning if the library is missing or old."""
    return compiled_or(
        CompiledCompare,
        compare_in_python,
        slower="Python compares the texts of candidates",
        source="reranking/texts.c",
    )


def normalized(text: str) -> str:
    """Return the text in lower case, its words separated by one space."""
    return " ".join(text.lower().split())


def trigrams_of(text: str) -> Iterable[str]:
    """Yield the character trigrams of each word, with a space before and after the word."""
    for word in text.split(" ") if text else ():
        padded = f" {word} "
        yield from (padded[place : place + 3] for place in range(len(padded) - 2))


def words_of(text: str) -> Iterable[int]:
    """Yield a hash (FNV-1a) per word: a run of letters, digits or characters beyond ASCII."""
    for word in re.findall(r"[a-zA-Z0-9_\x80-\U0010ffff]+", text):
        value = _FNV_BASIS
        for byte in word.encode():
            value = (value ^ byte) * _FNV_PRIME & _64_BITS
        yield value
