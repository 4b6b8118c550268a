"""How the text of a query and those of its candidates overlap: trigrams, words, first words.

The installation compiles `texts.c` into `libtexts.so` (see `hatch_build.py`); where that was not
built, Python computes the same, to the last bit, in twenty times the time.

Shapes: k labels, W words whose rarity is known.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from service.core.prediction.compiled import compiled_or
from service.core.types import Doubles

LIBRARY = Path(__file__).with_name("libtexts.so")
_OUT_OF_MEMORY = -1
_MARKS = ".,:;()[]\"'"
_FNV_BASIS, _FNV_PRIME, _64_BITS = 14695981039346656037, 1099511628211, 2**64 - 1

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, eq=False)
class WordRarity:
    """The logarithm of each word's inverse frequency among the labels of a catalogue.

    `hashes` [W] are those of the words, ascending, with their `rarity` [W]; `unknown` is that of
    any other word.
    """

    hashes: Hashes
    rarity: Doubles
    unknown: float

    @classmethod
    def among(cls, labels: Iterable[str]) -> Self:
        """Count in how many labels each word occurs."""
        counts: dict[int, int] = {}
        total = 0
        for label in labels:
            total += 1
            for word in dict.fromkeys(words_of(normalized(label))):
                counts[word] = counts.get(word, 0) + 1
        ascending = sorted(counts)
        rarity = np.log((1.0 + total) / (1.0 + np.array([counts[word] for word in ascending])))
        return cls(
            hashes=np.array(ascending, np.uint64),
            rarity=rarity.astype(np.float64),
            unknown=float(np.log(1.0 + total)),
        )

    def of(self, word: int) -> float:
        """The rarity of the word with this hash."""
        place = int(np.searchsorted(self.hashes, np.uint64(word)))
        if place < len(self.hashes) and int(self.hashes[place]) == word:
            return float(self.rarity[place])
        return self.unknown


class TextOverlap(NamedTuple):
    """What a query and each label have in common, and what each of them has: [k] each.

    Trigrams are of characters within words; words count by their rarity; a beginning is that of
    both first words, in characters.
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
    """Compare a query's text with those of labels [k]."""
    ours = _Parts(query, rarity)
    rows = np.array([_compared(ours, _Parts(label, rarity)) for label in labels], np.float64)
    return TextOverlap(*np.ascontiguousarray(rows.reshape(-1, len(TextOverlap._fields)).T))


class _Parts:
    """The trigrams, the words with their rarity, and the first word of a text."""

    def __init__(self, text: str, rarity: WordRarity) -> None:
        text = normalized(text)
        self.trigrams = set(trigrams_of(text))
        self.words = {word: rarity.of(word) for word in words_of(text)}
        self.first_word = first_word(text)


def _compared(ours: _Parts, theirs: _Parts) -> tuple[float, ...]:
    first, other = ours.first_word, theirs.first_word
    return (
        len(ours.trigrams & theirs.trigrams),
        len(ours.trigrams),
        len(theirs.trigrams),
        # Added in the order of the words, as the compiled function does.
        sum((one for word, one in theirs.words.items() if word in ours.words), 0.0),
        sum(ours.words.values(), 0.0),
        sum(theirs.words.values(), 0.0),
        common_beginning(first, other),
        len(first),
        len(other),
    )


class CompiledCompare:
    """`texts.c`; its calls keep the interpreter's lock, as `CompiledRanker` explains."""

    def __init__(self) -> None:
        """Load the compiled library.

        Raises `OSError` if it was not built, and `AttributeError` if another version was.
        """
        self._compare = ctypes.PyDLL(str(LIBRARY)).compare_texts
        self._compare.restype = ctypes.c_int64
        pointer, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        self._compare.argtypes = [
            *(pointer, integer),  # the query's bytes
            *(pointer, pointer, integer),  # the labels' bytes, where each ends, how many
            *(pointer, pointer, integer, real),  # hashes and rarity of W words; of other words
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
    """Return the compiled function; without a library, or with an old one, Python's."""
    return compiled_or(
        CompiledCompare,
        compare_in_python,
        slower="Python compares the texts of candidates",
        source="reranking/texts.c",
    )


def normalized(text: str) -> str:
    """The text in lower case, its words parted by one space."""
    return " ".join(text.lower().split())


def trigrams_of(text: str) -> Iterable[str]:
    """Trigrams of characters of each word with a space before and behind it."""
    for word in text.split(" ") if text else ():
        padded = f" {word} "
        yield from (padded[place : place + 3] for place in range(len(padded) - 2))


def words_of(text: str) -> Iterable[int]:
    """The hashes (FNV-1a) of runs of letters and digits; any character beyond ASCII is one."""
    for inside, run in groupby(text, key=lambda one: one > "\x7f" or one == "_" or one.isalnum()):
        if inside:
            yield _hash("".join(run).encode())


def _hash(word: bytes) -> int:
    value = _FNV_BASIS
    for byte in word:
        value = (value ^ byte) * _FNV_PRIME & _64_BITS
    return value


def first_word(text: str) -> str:
    """What stands before the first space, without marks at its ends."""
    return text.split(" ", 1)[0].strip(_MARKS)


def common_beginning(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((place for place, (left, right) in pairs if left != right), shorter)
