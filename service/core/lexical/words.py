r"""The words of a text: the lexical index finds rows by them, and keywords match queries by them.

Words are folded: case, width and accents do not matter. A compound or a code is a word as a whole,
and each of its pieces is a word too, so every way to write it finds the others:

| text             | words                               |
|------------------|-------------------------------------|
| `"Caf\xe9 Bars"` | `cafe`, `bars`                      |
| `"T-Shirt"`      | `tshirt`, `t`, `shirt`              |
| `"XK-4411b"`     | `xk4411b`, `xk`, `4411`, `b`        |
| `"men's"`        | `mens`                              |

Scripts that are written without spaces are not cut: a run of their characters is one word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from service.core.text_identity import folded
from service.core.types import MatchType

MOST_CHARACTERS = 64  # of a word; the rest of a longer one is ignored
_MOST_PIECES = 6  # of a compound that is also a word as a whole

# White space and punctuation beyond ASCII, without the joiners U+200C and U+200D.
_BEYOND_ASCII = (
    "\x80-\xa9\xab-\xb1\xb4\xb6-\xb8\xbb\xbf\xd7\xf7\u1680\u2000-\u200b\u200e-\u206f\u3000-\u303f"
)
_SEPARATOR = f"[^0-9A-Za-z\x80-\U0010ffff]|[{_BEYOND_ASCII}]"
_CHARACTER = f"(?:[0-9A-Za-z]|(?![{_BEYOND_ASCII}])[\x80-\U0010ffff])"
_APOSTROPHES = re.compile("['\u2019\u02bc]")
_ASCII_CHUNK = re.compile(r"[0-9A-Za-z]+(?:[^\s0-9A-Za-z]{1,2}[0-9A-Za-z]+)*")
_CHUNK = re.compile(rf"{_CHARACTER}+(?:(?:(?!\s)(?:{_SEPARATOR})){{1,2}}{_CHARACTER}+)*")
_PIECE = re.compile(r"\d+|[^\W\d_]+")
_RUN = re.compile(f"{_CHARACTER}+")
_DIGITS_OR_NOT = re.compile(r"\d+|\D+")
_ACCENTS = re.compile("[\u0300-\u036f]+")


class Chunk(NamedTuple):
    """A part of a text between spaces: its place in the text, and its folded words.

    `pieces` are the parts of a compound or code, and empty for a plain word.
    """

    start: int
    stop: int
    whole: str
    pieces: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The words by which this chunk is found."""
        if not self.pieces:
            return (self.whole,)
        return (self.whole, *self.pieces) if len(self.pieces) <= _MOST_PIECES else self.pieces


def chunks_of(text: str) -> Iterator[Chunk]:
    """Yield the chunks of a text in order."""
    for found in (_ASCII_CHUNK if text.isascii() else _CHUNK).finditer(text):
        chunk = _APOSTROPHES.sub("", found.group())
        if chunk.isalpha() and chunk.isascii():
            yield Chunk(found.start(), found.end(), chunk.lower()[:MOST_CHARACTERS], ())
            continue
        runs = _RUN.findall(_without_accents(folded(chunk)))
        if runs:
            whole = "".join(runs)[:MOST_CHARACTERS]
            cut = (piece for run in runs for piece in _DIGITS_OR_NOT.findall(run))
            pieces = tuple(piece[:MOST_CHARACTERS] for piece in cut)
            yield Chunk(found.start(), found.end(), whole, pieces if len(pieces) > 1 else ())


def words_of(text: str) -> list[str]:
    """Return the distinct words of a text, in the order of their first place."""
    if _is_plain(text):
        return list(dict.fromkeys(text.lower().split()))
    return list(dict.fromkeys(word for chunk in chunks_of(text) for word in chunk.words))


def _is_plain(text: str) -> bool:
    """Return whether a text has only ASCII letters and spaces, as most have.

    Its chunks are what `str.split` finds, in a fifth of the time.
    """
    return len(text) <= MOST_CHARACTERS and text.isascii() and text.replace(" ", "").isalpha()


def _without_accents(text: str) -> str:
    """Return a folded text without the accents of Latin, Greek and Cyrillic letters."""
    if text.isascii():
        return text
    bare = _ACCENTS.sub("", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", bare)


class TypedQuery:
    """A query, with which keywords are compared: how they match, in the terms of sponsored search.

    | type     | the keyword's words                      | of "Red T-shirts"             |
    |----------|------------------------------------------|-------------------------------|
    | `exact`  | are the query's, however they are spaced | `red tshirts`, `RED T SHIRTS` |
    | `phrase` | are all in the query, in this order      | `t-shirts`, `red shirts`      |
    | `broad`  | are others: it is found by its meaning   | `shirts red`, `red jacket`    |
    """

    def __init__(self, query: str) -> None:
        """Compare keywords with `query`: its words as wholes, and with compounds in pieces."""
        self.wholes, self.pieces = _in_words(query)
        self.joined = "".join(self.wholes)

    @property
    def words(self) -> set[str]:
        """All words of the query, wholes and pieces."""
        return {*self.wholes, *self.pieces}

    def match(self, *texts: str) -> MatchType:
        """Return how a keyword with these texts matches the query: the text that matches best."""
        best: MatchType = "broad"
        for text in texts:
            wholes, pieces = _in_words(text)
            if not wholes:
                continue
            if "".join(wholes) == self.joined:
                return "exact"
            if in_order(wholes, self.wholes) or in_order(pieces, self.pieces):
                best = "phrase"
        return best

    def contains(self, text: str) -> bool:
        """Return whether all words of `text` are in the query, in any order."""
        wholes, pieces = _in_words(text)
        words = self.words
        return bool(wholes) and (words.issuperset(wholes) or words.issuperset(pieces))


def _in_words(text: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words of a text in order, and the same with compounds in pieces."""
    if _is_plain(text):
        wholes = text.lower().split()
        return wholes, wholes
    chunks = list(chunks_of(text))
    pieces = [piece for chunk in chunks for piece in chunk.pieces or (chunk.whole,)]
    return [chunk.whole for chunk in chunks], pieces


def in_order(few: Iterable[str], many: Iterable[str]) -> bool:
    """Return whether all of `few` are among `many`, in the same order."""
    rest = iter(many)
    for word in few:  # `all` would take three times as long
        if word not in rest:
            return False
    return True
