"""The equations that the service's C code computes, in slow and plain Python, equal to the bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os.path import commonprefix

import numpy as np

from service.core.memory.view import View
from service.core.prediction.reranking.text_overlap import (
    TextOverlap,
    WordRarity,
    normalized,
    words_of,
)
from service.core.types import Doubles, Floats, PredictOptions, Rows

Ranked = tuple[list[int], list[float], Doubles]  # columns [k], scores [k], weights of the keys [b]


def ranked_by_equations(
    view: View, *, rows: Rows, similarities: Floats, tau: float, options: PredictOptions
) -> Ranked:
    """Rank the labels that `rows` [b] vote for: softmax (Eq. 5), blocks of V (Eq. 4), sum (Eq. 7).

    Labels are chosen and ordered by score times boost. Ties are ordered by label id.
    """
    logits = similarities.astype(np.float64) / tau
    exponentials = np.exp(logits - logits.max(initial=-np.inf))
    blocks = [
        options.memorization if instance else 1.0 - options.memorization
        for instance in view.is_instance(rows)
    ]
    weights = np.array(blocks) * (exponentials / exponentials.sum())
    scores: dict[int, float] = {}
    for row, weight in zip(rows, weights.tolist(), strict=True):
        columns, _, vote_weights = view.weighted_votes(np.array([row]))
        for column, vote in zip(columns.tolist(), vote_weights.tolist(), strict=True):
            scores[column] = scores.get(column, 0.0) + weight * vote
    scores = {column: score for column, score in scores.items() if score >= 0.0}
    boosts, name = view.labels.boosts, view.labels.id_at
    ranked = {
        column: score * (float(boosts[column]) if column < len(boosts) else 1.0)
        for column, score in scores.items()
    }
    best = sorted(scores, key=lambda one: (-ranked[one], name(one)))[: options.top_k]
    best.sort(key=lambda one: (-ranked[one], -scores[one], name(one)))
    return best, [scores[column] for column in best], weights


def compared_by_definition(query: str, labels: Sequence[str], rarity: WordRarity) -> TextOverlap:
    """Compare a query's text with the texts of labels [k]."""
    known = dict(zip(rarity.hashes.tolist(), rarity.rarity.tolist(), strict=True))

    def parts(text: str) -> tuple[set[str], dict[int, float], str]:
        text = normalized(text)
        words = {word: known.get(word, rarity.unknown) for word in words_of(text)}
        return set(trigrams_of(text)), words, text.split(" ", 1)[0].strip(".,:;()[]\"'")

    trigrams, words, first = parts(query)
    rows = [
        (
            len(trigrams & others),
            len(trigrams),
            len(others),
            # Added in the order of the words, as in the compiled function.
            sum((one for word, one in their_words.items() if word in words), 0.0),
            sum(words.values(), 0.0),
            sum(their_words.values(), 0.0),
            len(commonprefix((first, other))),  # noqa: RUF071 (of texts, not of paths)
            len(first),
            len(other),
        )
        for others, their_words, other in map(parts, labels)
    ]
    table = np.array(rows, np.float64).reshape(-1, len(TextOverlap._fields))
    return TextOverlap(*np.ascontiguousarray(table.T))


def trigrams_of(text: str) -> Iterable[str]:
    """Yield the character trigrams of each word, with a space before and after the word."""
    for word in text.split(" ") if text else ():
        padded = f" {word} "
        yield from (padded[place : place + 3] for place in range(len(padded) - 2))
