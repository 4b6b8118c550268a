r"""The identity of a text, by which equal keywords are found, and the ids made from it.

Two texts are the same if their identities are equal. The identity of a text is the text in NFKC,
case-folded, with single spaces and without invisible characters:

| text               | identity                                                      |
|--------------------|---------------------------------------------------------------|
| `"  Ice   AXE "`   | `"ice axe"`                                                   |
| `"\uff2e\uff29"`   | `"ni"`: full width                                            |
| `"nike\u200b"`     | `"nike"`: a space without width                               |
| `"cafe\u0301"`     | `"caf\xe9"`                                                   |
| `"\ufdfa" * 2048`  | its first 183 characters, `~`, and 32 digits of a hash of all |

A label or an item that comes without an id is the known one with the same identity. If there is
none, it is new, and its identity becomes its id (`free_id`). Data sets follow the same rule. The
writer decides, and the label log stores the id, so a replay never decides again.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from itertools import count
from typing import Protocol

import numpy as np

from service.core.types import Indices, Rows

MOST_ALIASES = 100  # of a label
MOST_TEXT_CHARACTERS = 2_048  # of a query, or a label's text, alias or id
MOST_CHARACTERS = 216  # of an identity, which takes at most 2,592 bytes in a URL's path
MOST_ID_CHARACTERS = 256  # of a generated id: an identity, and a number that `free_id` may add
_DIGEST_CHARACTERS = 32
# Soft hyphens, zero-width spaces, direction marks, word joiners. U+200C and U+200D stay, because
# emoji and several scripts use them.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
)
# Normalizing sorts runs of combining marks in quadratic time. UAX 15 calls a text stream-safe if no
# run has more than this many, and splits longer runs with U+034F.
_MOST_MARKS = 30
_MARKS_OF_CLASS_0 = "\u0f73\u0f75\u0f81\uff9e\uff9f"  # normalizing turns these into marks
_FIRST_PLANE, _PLANES_WITH_MARKS = 0x10000, 0x20000  # the code points below these


def identity(text: str) -> str:
    """Return the identity of `text`: what all spellings of one keyword have in common.

    An identity is its own identity. The identity of white space is empty.
    """
    if text.isascii():
        spaced = text.lower()
    else:
        visible = _INVISIBLE.sub("", text)
        spaced = folded(visible if visible.strip() else text)
    one = " ".join(spaced.split())
    if len(one) <= MOST_CHARACTERS:
        return one
    digest = hashlib.sha256(one.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{one[: MOST_CHARACTERS - _DIGEST_CHARACTERS - 1].rstrip()}~{digest}"


def free_id(text_identity: str, *, taken: Callable[[str], bool]) -> str:
    """Return the id of a new label or item: its identity, with a number if that id is taken."""
    if not taken(text_identity):
        return text_identity
    numbered = (f"{text_identity}~{number}" for number in count(2))
    return next(made for made in numbered if not taken(made))


def distinct_aliases(text: str, aliases: Iterable[str]) -> tuple[str, ...]:
    """Return a label's aliases, without those that equal its `text` or an earlier alias.

    They are equal if only case and spaces differ: making an identity may take a millisecond.
    """
    distinct: dict[str, str] = {}
    for one in (text, *aliases):
        distinct.setdefault(" ".join(one.casefold().split()), one)
    return tuple(distinct.values())[1:]


class _Texts(Protocol):  # a list, or a store on disk
    def __getitem__(self, place: int, /) -> str: ...
    def __iter__(self) -> Iterator[str]: ...


class IdentityLookup:
    """Finds the places of texts by identity, in 12 bytes per text; a dict takes ten times that.

    The table is made when it is first used, or by `prepare`. For a million texts of four words,
    this takes a second. The hashes are valid in this process only.
    """

    def __init__(self, texts: _Texts) -> None:
        """Look up places in `texts`, which must never change."""
        self._texts = texts

    def prepare(self) -> None:
        """Make the table now."""
        _ = self._table

    def places(
        self, text_identity: str, *, among: Callable[[Indices], Indices] | None = None
    ) -> Iterator[int]:
        """Yield the places of the texts with this identity, ascending.

        `among` returns those of ascending places that count. It is asked before texts are read.
        """
        hashes, places = self._table
        wanted = hash(text_identity)
        first, stop = (np.searchsorted(hashes, wanted, side) for side in ("left", "right"))
        found = places[first:stop]
        if len(found) and among is not None:
            found = among(found)
        for place in found.tolist():
            if identity(self._texts[place]) == text_identity:
                yield place

    @cached_property
    def _table(self) -> tuple[Rows, Indices]:
        """Return the hashes of the identities, ascending, and the places of their texts."""
        hashes = np.fromiter((hash(identity(text)) for text in self._texts), np.int64)
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        return hashes[order], order


def folded(text: str) -> str:
    """Return NFKC, case-folded, and NFKC again, because either step can undo the other."""
    once = unicodedata.normalize("NFKC", _stream_safe(text)).casefold()
    return once if once.isascii() else unicodedata.normalize("NFKC", once)


def _stream_safe(text: str) -> str:
    """Return `text` with U+034F after every `_MOST_MARKS` combining marks in a row."""
    if len(text) <= _MOST_MARKS:
        return text
    below = _FIRST_PLANE if max(text) < chr(_FIRST_PLANE) else _PLANES_WITH_MARKS
    return _too_many_marks(below).sub("\\g<0>\u034f", text)


@cache
def _too_many_marks(below: int) -> re.Pattern[str]:
    """Return a pattern for `_MOST_MARKS` marks before another one, of the characters below `below`.

    Matching a single mark first makes the search a hundred times as fast.
    """
    marks = "".join(filter(unicodedata.combining, map(chr, range(below))))
    mark = f"[{marks}{_MARKS_OF_CLASS_0}]"
    return re.compile(f"{mark}{mark}{{{_MOST_MARKS - 1}}}(?={mark})")
