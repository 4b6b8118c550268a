"""How likely a word was typed for another: the channel of a noisy-channel spelling corrector.

Of several words that may have been meant, the likeliest has the greatest P(word) P(typed | word):
Kernighan, Church and Gale (1990), "A Spelling Correction Program Based on a Noisy Channel Model".
P(word) is the share of texts that have the word. P(typed | word) is the product over the edits of
the likeliest alignment. The costs are the negative logarithms of its factors:

| typed        | meant          | edit                                    | cost |
|--------------|----------------|-----------------------------------------|------|
| `hapiness`   | `happiness`    | a doubled letter is missing             | 1.0  |
| `seprate`    | `separate`     | a vowel is missing                      | 2.0  |
| `goverment`  | `government`   | another letter is missing               | 3.0  |
| `beggin`     | `begin`        | a letter is doubled                     | 2.0  |
| `beagin`     | `begin`        | a vowel is added                        | 4.2  |
| `begtin`     | `begin`        | another letter is added                 | 5.5  |
| `recieve`    | `receive`      | neighbors are swapped                   | 2.0  |
| `seperate`   | `separate`     | a vowel replaces a vowel                | 3.5  |
| `consern`    | `concern`      | sounds alike: one consonant for another | 3.5  |
| `rexd`       | `read`         | any other letter                        | 5.8  |
| `rea`        | `read`         | at the end of the word                  | +1.4 |
| `eceive`     | `receive`      | at the beginning of the word            | +1.8 |

They were fitted by maximum likelihood to 4,000 misspellings that people made (section "Misspelled
queries" of training/lab/measured/notes.md). Letters of neighboring keys replace each other as
rarely as others there, so keyboards do not count.
"""

from __future__ import annotations

MISSING_DOUBLED, MISSING_VOWEL, MISSING = 1.0, 2.0, 3.0
ADDED_DOUBLED, ADDED_VOWEL, ADDED = 2.0, 4.2, 5.5
SWAPPED, ALIKE, REPLACED = 2.0, 3.5, 5.8
FIRST, LAST = 1.8, 1.4
_VOWELS = "aeiouy"
_SOUNDS = (_VOWELS, "ckqs", "sz", "gj", "dt", "vwf", "bp", "mn", "lr")
_ALIKE = frozenset(one + other for sound in _SOUNDS for one in sound for other in sound)


def error_cost(*, typed: str, meant: str) -> float:
    """Return -log P(typed | meant): the least cost of edits that turn `meant` into `typed`.

    A swap of neighbors is one edit, and no letter is edited twice (optimal string alignment).
    """
    start, rest = _same_ends(typed, meant)
    rows = len(typed) - start - rest + 1
    columns = len(meant) - start - rest + 1
    costs = [[0.0] * columns for _ in range(rows)]
    for i in range(rows):
        for j in range(columns):
            at, of = start + i - 1, start + j - 1  # the last letters so far
            ways = []
            if i:
                ways.append(costs[i - 1][j] + _one_more(typed, at, _ADDED))
            if j:
                ways.append(costs[i][j - 1] + _one_more(meant, of, _MISSING))
            if i and j:
                ways.append(costs[i - 1][j - 1] + _replaced(typed, at, meant[of]))
            if i > 1 and j > 1 and typed[at - 1 : at + 1] == meant[of] + meant[of - 1]:
                ways.append(costs[i - 2][j - 2] + SWAPPED + _at_ends(typed, at - 1, at))
            costs[i][j] = min(ways, default=0.0)
    return costs[-1][-1]


_ADDED = (ADDED_DOUBLED, ADDED_VOWEL, ADDED)
_MISSING = (MISSING_DOUBLED, MISSING_VOWEL, MISSING)


def _same_ends(one: str, other: str) -> tuple[int, int]:
    """Return how many letters two words share at the beginning, and after these at the end."""
    shorter = min(len(one), len(other))
    start = next((n for n in range(shorter) if one[n] != other[n]), shorter)
    most = shorter - start
    rest = next((n for n in range(most) if one[-1 - n] != other[-1 - n]), most)
    return start, rest


def _one_more(word: str, at: int, costs: tuple[float, float, float]) -> float:
    """Return the cost of a letter that the other word lacks: doubled, a vowel, or another."""
    letter, (doubled, vowel, other) = word[at], costs
    if letter in (word[at - 1 : at], word[at + 1 : at + 2]):
        cost = doubled
    else:
        cost = vowel if letter in _VOWELS else other
    return cost + _at_ends(word, at, at)


def _replaced(typed: str, at: int, meant: str) -> float:
    if typed[at] == meant:
        return 0.0
    return (ALIKE if typed[at] + meant in _ALIKE else REPLACED) + _at_ends(typed, at, at)


def _at_ends(word: str, first: int, last: int) -> float:
    """Return what an edit of the letters from `first` to `last` costs more at a word's ends."""
    return FIRST * (first == 0) + LAST * (last == len(word) - 1)
