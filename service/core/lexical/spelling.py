"""Reads a query as it was meant: words that nobody knows are replaced by the likeliest known words.

| typed         | read as        | because                                                         |
|---------------|----------------|-----------------------------------------------------------------|
| `hapiness`    | `happiness`    | the likeliest known word: one edit away, from 7 letters two     |
| `book mark`   | `bookmark`     | it is known and likelier than both words, which no row has      |
| `goldring`    | `gold ring`    | its parts are known words                                       |
| `headphonse`  | unchanged      | a row has it, perhaps as somebody's typo: known texts are found |
| `beautiful`   | unchanged      | no row has it, but the dictionary knows that it is no typo      |
| `kuala`       | unchanged      | a new name is likelier than a typo of a rare word               |
| `女士运动鞋`  | unchanged      | one other character of 男士运动鞋 is another word, not a typo   |

Words of rows and of the tokenizer's dictionary are known (see `lexicon`), and how likely one was
meant is in `noisy_channel`. Only words of four letters or more without digits are corrected. If
several known words are about as likely, the query has several readings, and the memory decides
between them (see `predictor`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import islice
from math import exp, inf, log
from typing import NamedTuple
from unicodedata import name

from service.core.lexical.lexicon import Alike, Lexicon
from service.core.lexical.noisy_channel import error_cost
from service.core.lexical.word_index import letters_of
from service.core.lexical.words import Chunk, chunks_of
from service.core.types import Correction, Reading

LEAST_LETTERS = 4  # of a word that is corrected
TWO_EDITS = 7  # letters of a word in which two edits are corrected
MOST_WORDS = 16  # at the beginning of a query; later words stay as they are
MOST_LOOKED_UP = 4  # words of one query, whether known words are near or not
LONGEST = 32  # letters of a word that is corrected
MOST_READINGS = 3

# The natural logarithms below were chosen by the measurements in training/lab/measured/notes.md,
# section "Misspelled queries".
ONE_EDIT_ENOUGH = 6.0  # cost of one edit, up to which no words two edits away are looked up
NEARLY = 3.0  # less likely than the best word, but still a reading
SPLIT, JOINED = 2.0, 4.0  # costs of a space too many and of a missing one
# A word that nobody knows is as likely as one that e^-(NEW + NEW_LETTER * its letters) rows have.
NEW, NEW_LETTER = -3.0, 1.3
CLEARLY = 10.0  # times as frequent: a word that no dictionary has is then a typo of its neighbor

# How the Unicode names of characters begin whose scripts have no spaces between words, or whose
# characters are whole syllables or words (UAX #14, line breaking classes ID and SA, and Tibetan).
_UNSPACED = (
    *("CJK ", "IDEOGRAPHIC ", "HIRAGANA ", "KATAKANA", "HALFWIDTH KATAKANA", "BOPOMOFO ", "YI "),
    *("TANGUT ", "NUSHU ", "KHITAN ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TAI ", "NEW TAI "),
    *("AHOM ", "TIBETAN ", "JAVANESE ", "BALINESE "),
)


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


class _Meant(NamedTuple):
    """A meaning of a typed word: its log P(meant) P(typed | meant), and the rows with its words."""

    likelihood: float
    read: str
    rows: int


def _corrected(lexicon: Lexicon, chunks: Sequence[Chunk], known: Set[str]) -> list[_Corrected]:
    """Return the corrections of a query's chunks, in their order."""
    corrected: list[_Corrected] = []
    place = looked_up = 0
    while place < len(chunks) and looked_up < MOST_LOOKED_UP:
        chunk, following = chunks[place], chunks[place + 1 : place + 2]
        choices: list[Correction] = []
        if following and _plain(chunk) and _plain(following[0]):
            choices = _joined(lexicon, chunk.whole, following[0].whole, known)
        if choices:
            place += 1
            chunk = chunk._replace(stop=following[0].stop)
        elif chunk.whole not in known and _correctable(lexicon, chunk):
            looked_up += 1
            choices = _replaced(lexicon, chunk.whole)
        if choices:
            corrected.append((chunk.start, chunk.stop, choices))
        place += 1
    return corrected


def _plain(chunk: Chunk) -> bool:
    """Return whether a chunk is a word, not a code, a number or a compound."""
    return not chunk.pieces and not chunk.whole.isdigit()


def _correctable(lexicon: Lexicon, chunk: Chunk) -> bool:
    word = chunk.whole
    return (
        _plain(chunk)
        and LEAST_LETTERS <= len(letters_of(word)) <= LONGEST
        and lexicon.dictionary.rank(word) is None
        and has_edits(word)
    )


def has_edits(word: str) -> bool:
    """Return whether a word is written in letters, of which a typo changes one or two.

    Where there are no spaces, a character is a syllable or a word: one other character means
    something else, and what looks like a word is a phrase.
    """
    return word.isascii() or not any(name(one, "").startswith(_UNSPACED) for one in word)


def _joined(lexicon: Lexicon, one: str, other: str, known: Set[str]) -> list[Correction]:
    """Return two words as one, if that is known and likelier, and no row has both words."""
    whole = one + other
    if len(letters_of(whole)) < LEAST_LETTERS or not lexicon.is_known(whole):
        return []
    if one in known and other in known and lexicon.together(one, other):
        return []
    if lexicon.share(one) * lexicon.share(other) >= lexicon.share(whole) * exp(-SPLIT):
        return []
    return [Correction(typed=f"{one} {other}", read=whole, rows=lexicon.frequency(whole))]


def _replaced(lexicon: Lexicon, word: str) -> list[Correction]:
    """Return what an unknown word may stand for, the most likely first; nothing if it is new."""
    meant = sorted([*_near(lexicon, word), *_split(lexicon, word)], reverse=True)
    if not meant:
        return []
    new = -log(max(1, lexicon.rows)) - NEW - NEW_LETTER * len(letters_of(word))
    least = max(new, meant[0].likelihood - NEARLY)
    likely = (one for one in meant[:MOST_READINGS] if one.likelihood >= least)
    found = dict.fromkeys(_spelled(lexicon, one.read, one.rows) for one in likely)
    return [Correction(typed=word, read=read, rows=rows) for read, rows in found]


def _spelled(lexicon: Lexicon, word: str, rows: int) -> tuple[str, int]:
    """Return a word of rows, or the clearly more frequent one of which it is a typo."""
    if " " in word or lexicon.dictionary.rank(word) is not None:
        return word, rows
    least = CLEARLY * lexicon.share(word)
    better = [near for near in lexicon.alike(word, 1) if near.share >= least]
    best = max(better, key=lambda near: (near.share, near.word), default=Alike(word, rows, 0.0))
    return best.word, best.rows


def _near(lexicon: Lexicon, word: str) -> list[_Meant]:
    """Return the known words near an unknown one."""
    typed = letters_of(word)
    found = lexicon.alike(word, 1)
    costs = [error_cost(typed=typed, meant=letters_of(near.word)) for near in found]
    if len(typed) >= TWO_EDITS and min(costs, default=inf) > ONE_EDIT_ENOUGH:
        found = lexicon.alike(word, 2)
        costs = [error_cost(typed=typed, meant=letters_of(near.word)) for near in found]
    return [
        _Meant(log(near.share) - cost, near.word, near.rows)
        for near, cost in zip(found, costs, strict=True)
    ]


def _split(lexicon: Lexicon, word: str) -> list[_Meant]:
    """Return a word as two that rows have: those that most rows have together, then each alone."""
    best = None
    for cut in range(2, len(word) - 1):
        parts = word[:cut], word[cut:]
        if all(map(lexicon.knows, parts)):
            rank = lexicon.together(*parts), min(map(lexicon.frequency, parts)), parts
            best = rank if best is None else max(best, rank)
    if best is None:
        return []
    together, _, (one, other) = best
    share = max(together / lexicon.rows, lexicon.share(one) * lexicon.share(other))
    return [_Meant(log(share) - JOINED, f"{one} {other}", together)]


def _reading(query: str, known: Set[str], corrected: Sequence[_Corrected], place: int) -> Reading:
    """Return the reading with the choice at `place` for each correction, or else the last one."""
    text, end, made = "", 0, []
    for start, stop, choices in corrected:
        made.append(choices[min(place, len(choices) - 1)])
        text += query[end:start] + made[-1].read
        end = stop
    text += query[end:]
    return Reading(query=query, text=text, corrections=tuple(made), known=known)
