"""Reads a query as it was meant: words that no row has are replaced by words of the memory.

| typed         | read as        | because                                                      |
|---------------|----------------|--------------------------------------------------------------|
| `hapiness`    | `happiness`    | the nearest known words: one edit, from 7 characters on two  |
| `book mark`   | `bookmark`     | it is a known word, and no row has both of its parts         |
| `runingshoes` | unchanged      | neither it nor its parts are near a known word               |
| `goldring`    | `gold ring`    | its parts are known words                                    |

Only words of four characters or more without digits are corrected. Where several known words are
as near, the query has several readings, and the memory decides between them (see `predictor`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import islice

from service.core.lexical.lexicon import Lexicon
from service.core.lexical.words import Chunk, chunks_of
from service.core.types import Correction, Reading

LEAST_CHARACTERS = 4  # of a word that is corrected
TWO_EDITS = 7  # characters of a word in which two edits are corrected
MOST_WORDS = 16  # at the beginning of a query; later words stay as they are
MOST_LOOKED_UP = 4  # words of one query, whether known words are near or not
LONGEST = 32  # characters of a word that is corrected
MOST_READINGS = 3


def readings(lexicon: Lexicon, query: str) -> tuple[Reading, ...]:
    """Return what a query may mean, at most `MOST_READINGS`, the most likely first."""
    chunks = list(islice(chunks_of(query), MOST_WORDS))
    known = frozenset(
        chunk.whole for chunk in chunks if _plain(chunk) and lexicon.knows(chunk.whole)
    )
    corrected = _corrected(lexicon, chunks, known)
    if not corrected:
        return (Reading(query=query, text=query, known=known),)
    count = min(MOST_READINGS, max(len(choices) for _, _, choices in corrected))
    return tuple(_reading(query, known, corrected, place) for place in range(count))


_Corrected = tuple[int, int, list[Correction]]  # where it starts and stops in the query, choices


def _corrected(lexicon: Lexicon, chunks: Sequence[Chunk], known: Set[str]) -> list[_Corrected]:
    """Return the corrections of a query's chunks, in their order."""
    corrected: list[_Corrected] = []
    place = looked_up = 0
    while place < len(chunks) and looked_up < MOST_LOOKED_UP:
        chunk, following = chunks[place], chunks[place + 1 : place + 2]
        choices: list[Correction] = []
        if following and _plain(chunk) and _plain(following[0]):
            both_known = chunk.whole in known and following[0].whole in known
            choices = _joined(lexicon, chunk, following[0], both_known=both_known)
        if choices:
            place += 1
            chunk = chunk._replace(stop=following[0].stop)
        elif chunk.whole not in known and _correctable(chunk):
            looked_up += 1
            choices = _replaced(lexicon, chunk.whole)
        if choices:
            corrected.append((chunk.start, chunk.stop, choices))
        place += 1
    return corrected


def _plain(chunk: Chunk) -> bool:
    """Return whether a chunk is a word, not a code, a number or a compound."""
    return not chunk.pieces and not chunk.whole.isdigit()


def _correctable(chunk: Chunk) -> bool:
    return _plain(chunk) and LEAST_CHARACTERS <= len(chunk.whole) <= LONGEST


def _joined(lexicon: Lexicon, one: Chunk, other: Chunk, *, both_known: bool) -> list[Correction]:
    """Return two words as one, if that is known and they do not belong together as two."""
    whole = one.whole + other.whole
    rows = lexicon.frequency(whole) if len(whole) >= LEAST_CHARACTERS else 0
    if not rows or (both_known and lexicon.together(one.whole, other.whole)):
        return []
    return [Correction(typed=f"{one.whole} {other.whole}", read=whole, rows=rows)]


def _replaced(lexicon: Lexicon, word: str) -> list[Correction]:
    """Return what an unknown word may stand for, the most likely first."""
    near = lexicon.alike(word, 1)
    split = [] if near else _split(lexicon, word)
    if not near and len(word) >= TWO_EDITS and not (split and split[0].rows):
        near = lexicon.alike(word, 2)
    found = [Correction(typed=word, read=one.word, rows=-one.minus_rows) for one in near]
    return found[:MOST_READINGS] or split


def _split(lexicon: Lexicon, word: str) -> list[Correction]:
    """Return a word as two known ones: those that most rows have together, then each alone."""
    best = None
    for cut in range(2, len(word) - 1):
        parts = word[:cut], word[cut:]
        if all(map(lexicon.knows, parts)):
            rank = lexicon.together(*parts), min(map(lexicon.frequency, parts)), parts
            best = rank if best is None else max(best, rank)
    if best is None:
        return []
    together, _, parts = best
    return [Correction(typed=word, read=" ".join(parts), rows=together)]


def _reading(query: str, known: Set[str], corrected: Sequence[_Corrected], place: int) -> Reading:
    """Return the reading with the choice at `place` for each correction, or else the last one."""
    text, end, made = "", 0, []
    for start, stop, choices in corrected:
        made.append(choices[min(place, len(choices) - 1)])
        text += query[end:start] + made[-1].read
        end = stop
    text += query[end:]
    return Reading(query=query, text=text, corrections=tuple(made), known=known)
