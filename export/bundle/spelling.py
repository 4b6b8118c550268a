"""Measures whether misspelled queries should be corrected by default, and records the figures.

Each hidden row's text is asked, once as it is, and once with a typo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from export.bundle.hidden_rows import Asked, HiddenRows, Query
from service.core.bundle.manifest import Manifest
from service.core.options import complete_options
from service.core.text_identity import identity
from service.core.types import Bools, Spelling
from training.progress import Report

NOISE = 2.0  # standard errors of a difference of P@1
SHOWN = 10  # keywords: the first may be the query itself, which is no answer to it


def choose_spelling(hidden: HiddenRows, *, report: Report) -> Manifest:
    """Return the bundle's manifest with its spelling, and the P@1 with and without it, in percent.

    Spelling is "auto" unless it loses, beyond the noise of so many rows, on queries with a typo or
    on others.
    """
    facts, rows = hidden.bundle.manifest, hidden.rows
    if not rows:
        return replace(facts, spelling="auto")
    texts = [*map(hidden.text, rows), *hidden.typos()]
    right = _right(hidden, list(zip([*rows, *rows], texts, strict=True)), report=report)
    halves = np.split(right, 2)  # [n, 2] of the texts, and of the texts with a typo
    figures = 100 * np.array([half.mean(axis=0) for half in halves])
    (clean, corrected), (typo, corrected_typo) = figures.tolist()
    loses = any(_loses(off, auto) for off, auto in (half.T for half in halves))
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


def _right(hidden: HiddenRows, queries: Sequence[Query], *, report: Report) -> Bools:
    """Return whether the best label of each query is one of its row's, off and auto, [n, 2]."""
    facts, step = hidden.bundle.manifest, "measure spelling"
    options = complete_options(facts, top_k=SHOWN, rerank=False, spelling="auto")
    report(step, 0, len(queries))
    auto = hidden.ask(queries, options, progress=lambda done: report(step, done, len(queries)))
    off = dict(zip(queries, auto, strict=True))
    # Where nothing was corrected, the answer without spelling is the same.
    changed = [query for query, one in off.items() if one.reading.text != query[1]]
    off.update(zip(changed, hidden.ask(changed, replace(options, spelling=False)), strict=True))
    return np.array(
        [
            [_is_right(hidden, query, off[query]), _is_right(hidden, query, one)]
            for query, one in zip(queries, auto, strict=True)
        ]
    )


def _is_right(hidden: HiddenRows, query: Query, asked: Asked) -> bool:
    """Return whether the best label is one of the row's.

    A label whose text is the query, typed or read, does not count.
    """
    row, _ = query
    texts, own = (
        hidden.bundle.label_texts,
        {identity(hidden.text(row)), identity(asked.reading.text)},
    )
    best = (column for column in asked.columns if identity(texts[column]) not in own)
    return next(best, -1) in hidden.labels_of(row)
