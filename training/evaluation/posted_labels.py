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
from service.core.lexical.words import words_of
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import NewLabel, PredictOptions, Role
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


@dataclass(frozen=True, kw_only=True)
class PostedMeasure:
    """Posts labels to a bundle's memory, drawn by `seed`, and asks for each."""

    predictor: Predictor
    encoder: Encoder
    bundle: Bundle
    options: PredictOptions
    seed: int = 0

    def rows(self) -> Iterator[NoiseRow]:
        """Measure each kind; a row's `clean` is the P@1 of the labels' whole texts."""
        chance = Random(f"posted {self.seed}")
        bases, codes = self._drawn(chance)
        texts = [f"{base} {code}" for base, code in zip(bases, codes, strict=True)]
        view = self._posted(texts)
        clean = self._found(view, texts)
        for kind, queries in (
            ("code", [chance.choice(_FORMS)(code) for code in codes]),
            ("rare words", [_rarest(view, base) for base in bases]),
        ):
            noisy = self._found(view, queries)
            yield NoiseRow(kind=kind, rows=len(texts), clean=clean, noisy=noisy)

    def _drawn(self, chance: Random) -> tuple[list[str], list[str]]:
        """Return the words and the codes of the labels; no two are equal."""
        known, bases, codes = self.bundle.label_texts, dict[str, None](), dict[str, None]()
        pairs = min(LABELS, len(known) * (len(known) - 1) // 2)
        while len(bases) < pairs:
            one, other = chance.sample(range(len(known)), 2)
            bases[f"{known[min(one, other)]} {known[max(one, other)]}"] = None
        while len(codes) < len(bases):
            letters = "".join(chance.choices(ascii_uppercase, k=2))
            codes[f"{letters}-{chance.randrange(1_000, 10_000)}"] = None
        return list(bases), list(codes)

    def _posted(self, texts: Sequence[str]) -> View:
        """Return the bundle's memory after the labels were posted; their ids are their places."""
        representer, changes = open_representer(self.encoder, self.bundle), []
        for place, text in enumerate(texts):
            [encoded] = representer.encode([[(Role.LABEL, text)]])
            label = NewLabel(id=_id(place), text=text)
            changes.append(PutLabel(sequence=place + 1, label=label, vectors=encoded.rows))
        return KnowledgeMemory(self.bundle).apply(changes)

    def _found(self, view: View, queries: Sequence[str]) -> float:
        """Return the P@1 in percent of queries, one for each posted label."""
        options = replace(self.options, top_k=1)
        hits = []
        for place, query in enumerate(queries):
            [answer] = self.predictor.predict(view, [query], options).predictions
            hits.append([keyword.id for keyword in answer.keywords] == [_id(place)])
        return float(100 * np.mean(hits)) if hits else 0.0


def _id(place: int) -> str:
    return f"posted label {place}"


def _rarest(view: View, text: str) -> str:
    """Return the two words of a text that fewest rows have, in its order."""
    words = words_of(text)
    rarest = sorted(words, key=view.lexicon.frequency)[:2]
    return " ".join(word for word in words if word in rarest)
