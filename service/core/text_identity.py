r"""The identity of a text, by which equal keywords are found, and the ids made from it.

Two texts are the same if their identities are equal. The identity of a text is the text in NFKC,
case-folded, with single spaces and without default-ignorable characters (Unicode's NFKC_Casefold).
Those that make one emoji of several stay (`shown`):

| text               | identity                                                      |
|--------------------|---------------------------------------------------------------|
| `"  Ice   AXE "`   | `"ice axe"`                                                   |
| `"\uff2e\uff29"`   | `"ni"`: full width                                            |
| `"nike\u200b"`     | `"nike"`: a space without width                               |
| `"\u2764\ufe0f"`   | `"\u2764"`: a variation selector                              |
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
from functools import cache, cached_property, lru_cache
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np

from service.core.types import Indices, Rows

MOST_ALIASES = 100  # of a label
MOST_TEXT_CHARACTERS = 2_048  # of a query, or a label's text, alias or id
MOST_CHARACTERS = 216  # of an identity, which takes at most 2,592 bytes in a URL's path
MOST_ID_CHARACTERS = 256  # of a generated id: an identity, and a number that `free_id` may add
_DIGEST_CHARACTERS = 32
_REMEMBERED = 1_024  # texts: a posted one is identified by the request, its plan and the table
# Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt, the same from 14.0 to 17.0:
# those that never count, and those that emoji need.
_TAG, _LAST_TAG = "\U000e0020-\U000e007e", "\U000e007f"
_NEVER = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e001f\U000e0080-\U000e0fff"
)
_NEVER_COUNTING = re.compile(f"[{_NEVER}]+")
_IGNORABLE = re.compile(f"[{_NEVER}\u200d{_TAG}{_LAST_TAG}]")
# Ranges that hold all emoji that are joined, and no character that folding changes.
_EMOJI = "\u2190-\u2199\u25a0-\u27bf\u2b00-\u2bff\U0001f300-\U0001faff"
_JOINING = re.compile(
    f"(?<=[{_EMOJI}])(?:([{_TAG}]+{_LAST_TAG})|(\u200d)\u200d*(?=[{_EMOJI}]))"
    f"|[\u200d{_TAG}{_LAST_TAG}]"
)
# General_Category Cc without white space (the property White_Space).
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
# Normalizing sorts runs of combining marks in quadratic time, so longer runs are sorted before.
_MOST_MARKS = 30
_MARKS_OF_CLASS_0 = "\u0f73\u0f75\u0f81\uff9e\uff9f"  # normalizing turns these into marks
_FIRST_PLANE, _PLANES_WITH_MARKS = 0x10000, 0x20000  # the code points below these


@lru_cache(_REMEMBERED)
def identity(text: str) -> str:
    """Return the identity of `text`: what all spellings of one keyword have in common.

    An identity is its own identity. The identity of white space is empty.
    """
    if text.isascii():
        spaced = text.lower()
    else:
        counting = shown(text)
        spaced = folded(counting if counting.strip() else text)
    one = " ".join(spaced.split())
    if len(one) <= MOST_CHARACTERS:
        return one
    digest = hashlib.sha256(one.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{one[: MOST_CHARACTERS - _DIGEST_CHARACTERS - 1].rstrip()}~{digest}"


def shown(text: str) -> str:
    r"""Return `text` without default-ignorable characters, which show nothing of their own.

    Inside an emoji some have a meaning and stay: joiners between two pictures, such as
    `"\U0001f469\u200d\U0001f4bb"`, and the tags of a flag. Variation selectors do not, because they
    choose a style for the same sign.
    """
    if text.isascii() or not _IGNORABLE.search(text):
        return text
    return _JOINING.sub(r"\1\2", _NEVER_COUNTING.sub("", text))


def readable(text: str) -> str:
    """Return a query, a text or an id that something shows, and without control characters.

    Raises `ValueError` for any other.
    """
    if not shown(uncontrolled(text)).strip():
        raise ValueError("has no visible character")
    return text


def uncontrolled(text: str) -> str:
    """Return a text without control characters; raises `ValueError` for any other.

    White space is allowed, such as tabs and line breaks. Other control characters come from damage
    or attacks: terminals obey them, and some databases and programs end a text at NUL.
    """
    control = None if text.isprintable() else _CONTROL.search(text)
    if control:
        code = ord(control.group())
        raise ValueError(f"has the control character U+{code:04X} at position {control.start()}")
    return text


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
        made = identity.__wrapped__  # no text comes twice
        hashes = np.fromiter((hash(made(text)) for text in self._texts), np.int64)
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        return hashes[order], order


def folded(text: str) -> str:
    """Return NFKC, case-folded, and NFKC again, because either step can undo the other."""
    once = unicodedata.normalize("NFKC", _with_sorted_marks(text)).casefold()
    return once if once.isascii() else unicodedata.normalize("NFKC", once)


def _with_sorted_marks(text: str) -> str:
    """Return `text`, decomposed and with marks in canonical order if it has a long run of them."""
    if len(text) <= _MOST_MARKS:
        return text
    mark = _mark(_FIRST_PLANE if max(text) < chr(_FIRST_PLANE) else _PLANES_WITH_MARKS)
    if not mark.many.search(text):
        return text
    apart = "".join(unicodedata.normalize("NFKD", character) for character in text)
    return mark.some.sub(_sorted, apart)


def _sorted(marks: re.Match[str]) -> str:
    return "".join(sorted(marks.group(), key=unicodedata.combining))


class _Marks(NamedTuple):
    some: re.Pattern[str]
    many: re.Pattern[str]  # one more than `_MOST_MARKS`


@cache
def _mark(below: int) -> _Marks:
    """Return patterns for runs of combining marks, of the characters below `below`.

    Matching a single mark first makes the search a hundred times as fast.
    """
    marks = "".join(filter(unicodedata.combining, map(chr, range(below))))
    mark = f"[{marks}{_MARKS_OF_CLASS_0}]"
    return _Marks(
        some=re.compile(f"{mark}{{2,}}"), many=re.compile(f"{mark}{mark}{{{_MOST_MARKS}}}")
    )
