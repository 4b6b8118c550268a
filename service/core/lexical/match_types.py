"""How a keyword matches a query, in the language of sponsored search.

| type     | the keyword's words                      | of "Red T-shirts"             |
|----------|------------------------------------------|-------------------------------|
| `exact`  | are the query's, however they are spaced | `red tshirts`, `RED T SHIRTS` |
| `phrase` | are all in the query, in this order      | `t-shirts`, `red shirts`      |
| `broad`  | are others: it is found by its meaning   | `shirts red`, `red jacket`    |

Case, accents and punctuation do not count. Codes are equal in all forms: `XK-4411`, `xk 4411`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from service.core.lexical.words import chunks_of
from service.core.types import MatchType


class TypedQuery:
    """A query, with which keywords are compared."""

    def __init__(self, query: str) -> None:
        """Compare keywords with `query`."""
        self._wholes, self._pieces = _words(query)
        self._joined = "".join(self._wholes)

    def match(self, keyword: str) -> MatchType:
        """Return how a keyword matches the query."""
        wholes, pieces = _words(keyword)
        if not wholes:
            return "broad"
        if "".join(wholes) == self._joined:
            return "exact"
        if _in_order(wholes, self._wholes) or _in_order(pieces, self._pieces):
            return "phrase"
        return "broad"


def _words(text: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words of a text in order, and the same with compounds in pieces."""
    chunks = list(chunks_of(text))
    pieces = [piece for chunk in chunks for piece in chunk.pieces or (chunk.whole,)]
    return [chunk.whole for chunk in chunks], pieces


def _in_order(few: Iterable[str], many: Iterable[str]) -> bool:
    """Return whether all of `few` are among `many`, in the same order."""
    rest = iter(many)
    return all(word in rest for word in few)
