"""Measures whether misspelled queries should be corrected by default, and records the figures.

Each hidden row's text is asked, once as it is, and once with a typo.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from export.bundle.hidden_rows import HiddenRows
from service.core.bundle.manifest import Manifest
from service.core.memory.view import View
from service.core.text_identity import identity
from service.core.types import Bools, Prediction, PredictOptions, Spelling
from training.evaluation.noise import with_typo
from training.progress import Report

NOISE = 2.0  # standard errors of a difference of P@1
_SHOWN = 5  # keywords: the first may be the query itself, which is no answer to it
_REPORTED = 100  # rows


def choose_spelling(hidden: HiddenRows, *, report: Report) -> Manifest:
    """Return the bundle's manifest with its spelling, and the P@1 with and without it, in percent.

    Spelling is "auto" unless it loses, beyond the noise of so many rows, on queries with a typo or
    on others.
    """
    facts, rows = hidden.bundle.manifest, hidden.rows
    if not rows:
        return replace(facts, spelling="auto")
    chance, hits = random.Random(0), np.zeros((len(rows), 4), bool)
    for place, row in enumerate(rows):
        if place % _REPORTED == 0:
            report("measure spelling", place, len(rows))
        query = hidden.text(row)
        texts = (query, with_typo(query, chance) or query)
        hits[place] = [right for text in texts for right in _are_right(hidden, row, text)]
    report("measure spelling", len(rows), len(rows))
    clean, corrected, typo, corrected_typo = (100 * hits.mean(axis=0)).tolist()
    loses = _loses(hits[:, 0], hits[:, 1]) or _loses(hits[:, 2], hits[:, 3])
    chosen: Spelling = "off" if loses else "auto"
    metrics = {
        "spelling.P@1_off": clean,
        "spelling.P@1_auto": corrected,
        "spelling.typo_P@1_off": typo,
        "spelling.typo_P@1_auto": corrected_typo,
    }
    return replace(facts, spelling=chosen, metrics={**facts.metrics, **metrics})


def _loses(off: Bools, auto: Bools) -> bool:
    """Return whether fewer of the same queries [n] are right with "auto", beyond noise."""
    lost = off.astype(np.float64) - auto
    return bool(lost.mean() > NOISE * lost.std() / np.sqrt(len(lost)))


def _are_right(hidden: HiddenRows, row: int, query: str) -> tuple[bool, bool]:
    """Return whether the best label for `query` is one of the hidden row's, off and auto."""
    view = hidden.without(row)
    auto = _answer(hidden, view, query, spelling=True)
    right = _is_right(hidden, row, auto)
    if auto.reading.text == query:  # so the answer without spelling is the same
        return right, right
    return _is_right(hidden, row, _answer(hidden, view, query, spelling=False)), right


def _answer(hidden: HiddenRows, view: View, query: str, *, spelling: bool) -> Prediction:
    options = hidden.bundle.manifest.options(PredictOptions(top_k=_SHOWN), rerank=False)
    options = replace(options, spelling=spelling)
    [answer] = hidden.predictor.predict(view, [query], options).predictions
    return answer


def _is_right(hidden: HiddenRows, row: int, answer: Prediction) -> bool:
    """Return whether the best label is one of the row's.

    A label whose text is the query, typed or read, does not count.
    """
    asked = {identity(hidden.text(row)), identity(answer.reading.text)}
    best = (word.id for word in answer.keywords if identity(word.text) not in asked)
    return hidden.view.labels.column(next(best, "")) in hidden.labels_of(row)
