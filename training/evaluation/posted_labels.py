"""Whether labels that were just posted are found by what only they have: a code, or rare words.

A label is made of the texts of two labels of the data set and a code, such as "tent head lamp
XK-4411". All are posted to the memory as the service would, without queries. Then each is asked:

| kind       | query                                                                    |
|------------|--------------------------------------------------------------------------|
| code       | the code alone, in one of its forms: `XK-4411`, `xk4411`, `xk 4411`, ... |
| rare words | the two words of the label, without its code, that fewest rows have      |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from string import ascii_uppercase

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.changes import PutLabel
from service.core.encoding.encoder import Encoder
from service.core.encoding.representer import open_representer
from service.core.files.text_store import TextStore
from service.core.lexical.words import words_of
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.types import NewLabel, Role
from training.evaluation.asking import Asking
from training.evaluation.noise import NoiseRow

LABELS = 1_000  # that are posted and asked
KINDS = ("code", "rare words")
_FORMS: Sequence[Callable[[str], str]] = (
    str,
    str.lower,
    lambda code: code.replace("-", ""),
    lambda code: code.replace("-", "").lower(),
    lambda code: code.replace("-", " ").lower(),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PostedLabels:
    """Labels as they were drawn, and a bundle's memory after they were posted."""

    view: View
    bases: Sequence[str]  # the words of each label, without its code
    codes: Sequence[str]

    @classmethod
    def of(cls, bundle: Bundle, encoder: Encoder, *, count: int, chance: Random) -> PostedLabels:
        """Draw at most `count` labels, and post them; their ids are `posted_id` of their places."""
        bases, codes = _drawn(bundle.label_texts, count, chance)
        representer, changes = open_representer(encoder, bundle), []
        for place, text in enumerate(map(_text, bases, codes)):
            [encoded] = representer.encode([[(Role.LABEL, text)]])
            label = NewLabel(id=posted_id(place), text=text)
            changes.append(PutLabel(sequence=place + 1, label=label, vectors=encoded.rows))
        view = KnowledgeMemory(bundle).apply(changes)
        return cls(view=view, bases=bases, codes=codes)

    @property
    def texts(self) -> list[str]:
        """The labels' texts."""
        return list(map(_text, self.bases, self.codes))

    def typed_codes(self, chance: Random) -> list[str]:
        """Return each label's code in one of the forms in which people type it."""
        return [chance.choice(_FORMS)(code) for code in self.codes]

    def rare_words(self) -> list[str]:
        """Return the two words of each label, without its code, that fewest rows have."""
        return [_rarest(self.view, base) for base in self.bases]


def posted_id(place: int) -> str:
    """Return the id of the label that was posted as number `place`, from 0."""
    return f"posted label {place}"


def measure_posted(asking: Asking, encoder: Encoder) -> Iterator[NoiseRow]:
    """Post labels to the memory, drawn by the seed, and ask for each of them.

    A row's `clean` is the P@1 of the labels' whole texts.
    """
    chance, bundle = Random(f"posted {asking.seed}"), asking.view.bundle
    posted = PostedLabels.of(bundle, encoder, count=LABELS, chance=chance)
    asking = replace(asking, view=posted.view)
    clean = _found(asking, posted.texts)
    for kind, queries in (
        ("code", posted.typed_codes(chance)),
        ("rare words", posted.rare_words()),
    ):
        noisy = _found(asking, queries)
        yield NoiseRow(kind=kind, rows=len(queries), clean=clean, noisy=noisy)


def _found(asking: Asking, queries: Sequence[str]) -> float:
    """Return the P@1 in percent of queries, one for each posted label."""
    hits = [
        [keyword.id for keyword in keywords] == [posted_id(place)]
        for place, keywords in enumerate(asking.keywords(queries, top_k=1))
    ]
    return float(100 * np.mean(hits)) if hits else 0.0


def _drawn(known: TextStore, count: int, chance: Random) -> tuple[list[str], list[str]]:
    """Return the words and the codes of labels; no two are equal."""
    bases, codes = dict[str, None](), dict[str, None]()
    pairs = min(count, len(known) * (len(known) - 1) // 2)
    while len(bases) < pairs:
        one, other = chance.sample(range(len(known)), 2)
        bases[f"{known[min(one, other)]} {known[max(one, other)]}"] = None
    while len(codes) < len(bases):
        letters = "".join(chance.choices(ascii_uppercase, k=2))
        codes[f"{letters}-{chance.randrange(1_000, 10_000)}"] = None
    return list(bases), list(codes)


def _text(base: str, code: str) -> str:
    return f"{base} {code}"


def _rarest(view: View, text: str) -> str:
    """Return the two words of a text that fewest rows have, in its order."""
    words = words_of(text)
    rarest = sorted(words, key=view.lexicon.frequency)[:2]
    return " ".join(word for word in words if word in rarest)
