"""Queries as people type them: the noise with which `keymatch score --noise` changes test queries.

Each kind of noise changes one place of a query, drawn by a seeded generator; a query that a kind
cannot change is left out of its figures.

| kind       | "red trail shoes" may become                                             |
|------------|--------------------------------------------------------------------------|
| typo       | "red trial shoes": a character is dropped, added, replaced or swapped    |
| two typos  | "red tral shoess"                                                        |
| plural     | "red trail shoe": the last word loses or gets an s                       |
| split      | "red tra il shoes"                                                       |
| joined     | "redtrail shoes"                                                         |
| case       | "RED TRAIL SHOES"                                                        |
| accents    | "red tr\u00e1il shoes": a vowel gets an accent                                |
| added      | "buy red trail shoes": a word that says nothing about the product        |
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from training.evaluation.asking import Asking

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = "aeiou"
ACUTE = "\u0301"
ADDED = ("buy", "cheap", "best", "the", "online", "new")
LEAST_LETTERS = 4  # of a word that is misspelled or split
ROWS = 1_000  # the most test rows that are asked

Noise = Callable[[str, Random], str | None]


def with_typo(query: str, chance: Random) -> str | None:
    """Return the query with one edit in one word, or None if no word is long enough."""
    return _in_word(query, chance, _edited)


def nonsense(query: str, chance: Random) -> str:
    """Return a text that means nothing: a query of shuffled or random letters, or a code."""

    def random_letters(count: int) -> str:
        return "".join(chance.choices(LETTERS, k=count))

    kind = chance.randrange(3)
    if kind == 0:
        return " ".join("".join(chance.sample(word, len(word))) for word in query.split()[:3])
    if kind == 1:
        return " ".join(random_letters(chance.randint(4, 10)) for _ in range(chance.randint(1, 3)))
    return f"{random_letters(2)}-{chance.randrange(1_000, 10_000)}"


def _two_typos(query: str, chance: Random) -> str | None:
    once = with_typo(query, chance)
    return None if once is None else with_typo(once, chance)


def _plural(query: str, chance: Random) -> str | None:
    if not query[-1:].isalpha():
        return None
    return query[:-1] if query[-1] in "sS" else f"{query}s"


def _split(query: str, chance: Random) -> str | None:
    def cut(word: str, chance: Random) -> str:
        place = chance.randrange(1, len(word))
        return f"{word[:place]} {word[place:]}"

    return _in_word(query, chance, cut)


def _joined(query: str, chance: Random) -> str | None:
    words = query.split()
    if len(words) < 2:
        return None
    place = chance.randrange(1, len(words))
    return " ".join([*words[: place - 1], words[place - 1] + words[place], *words[place + 1 :]])


def _upper(query: str, chance: Random) -> str | None:
    return query.upper()


def _accented(query: str, chance: Random) -> str | None:
    places = [place for place, letter in enumerate(query) if letter.lower() in VOWELS]
    if not places:
        return None
    after = chance.choice(places) + 1
    return unicodedata.normalize("NFC", query[:after] + ACUTE + query[after:])


def _added(query: str, chance: Random) -> str | None:
    return f"{chance.choice(ADDED)} {query}"


KINDS: Mapping[str, Noise] = {
    "typo": with_typo,
    "two typos": _two_typos,
    "plural": _plural,
    "split": _split,
    "joined": _joined,
    "case": _upper,
    "accents": _accented,
    "added": _added,
}


def noisy(kind: str, query: str, chance: Random) -> str | None:
    """Return a query with one kind of noise, or None if that does not change it."""
    changed = KINDS[kind](query, chance)
    return None if changed == query else changed


@dataclass(frozen=True, kw_only=True)
class NoiseRow:
    """The P@1 of one kind of noise in percent, and that of the same rows without noise."""

    kind: str
    rows: int
    clean: float
    noisy: float


def measure_noise(asking: Asking) -> Iterator[NoiseRow]:
    """Measure each kind of noise on test rows."""
    queries, drawn = asking.dataset.test.instances.texts, asking.drawn(ROWS)
    right = dict(zip(drawn, _right(asking, drawn, [queries[row] for row in drawn]), strict=True))
    for kind in KINDS:
        chance = Random(f"{kind} {asking.seed}")
        changed = {row: noisy(kind, queries[row], chance) for row in drawn}
        asked = {row: query for row, query in changed.items() if query is not None}
        hits = _right(asking, list(asked), list(asked.values()))
        yield NoiseRow(
            kind=kind,
            rows=len(asked),
            clean=_percent([right[row] for row in asked]),
            noisy=_percent(hits),
        )


def _right(asking: Asking, rows: Sequence[int], queries: Sequence[str]) -> list[bool]:
    """Return whether the best label of each query is one of its test row's.

    Labels that the data set filters for a row do not count.
    """
    most = int(np.diff(asking.dataset.test.filtered.indptr).max(initial=0)) + 1
    hits = []
    for row, keywords in zip(rows, asking.keywords(queries, top_k=most), strict=True):
        filtered = asking.filtered(row)
        best = (keyword.id for keyword in keywords if keyword.id not in filtered)
        hits.append(next(best, "") in asking.relevant(row))
    return hits


def _in_word(query: str, chance: Random, change: Callable[[str, Random], str]) -> str | None:
    """Return the query with a change in one of its longer words, or None if it has none."""
    words = query.split()
    places = [
        place for place, word in enumerate(words) if len(word) >= LEAST_LETTERS and word.isalpha()
    ]
    if not places:
        return None
    place = chance.choice(places)
    return " ".join([*words[:place], change(words[place], chance), *words[place + 1 :]])


def _edited(word: str, chance: Random) -> str:
    """Return a word in which a character is dropped, added, replaced or swapped with the next."""
    place, letter = chance.randrange(len(word)), chance.choice(LETTERS)
    swapped = min(place, len(word) - 2)
    return chance.choice(
        [
            word[:place] + word[place + 1 :],
            word[:place] + letter + word[place:],
            word[:place] + letter + word[place + 1 :],
            word[:swapped] + word[swapped + 1] + word[swapped] + word[swapped + 2 :],
        ]
    )


def _percent(hits: Sequence[bool]) -> float:
    return 100.0 * sum(hits) / len(hits) if hits else 0.0
