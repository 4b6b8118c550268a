"""Fits the confidences of a bundle's keywords on hidden rows, as they are asked by people.

| query                                          | weight | which labels are relevant         |
|------------------------------------------------|-------:|-----------------------------------|
| a hidden row's text, as it is and with a typo  |   1, 1 | the row's                         |
| the same row's text while it is not hidden     |    0.3 | the row's                         |
| nonsense: random or shuffled letters, codes    |    0.3 | none                              |
| the code of a label that was posted            |    0.1 | this label                        |

Known queries are told from new ones by a feature of their own, so they do not make new ones surer.

A label of which a text or alias is the query is relevant, too, whether or not the data say so.

Shapes: n labels of all queries, F features, H hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from export.bundle.hidden_rows import Asked, HiddenRows
from export.bundle.spelling import SHOWN
from service.core.bundle.manifest import ConfidenceFacts, Manifest
from service.core.memory.view import View
from service.core.options import complete_options
from service.core.prediction.confidence import FARTHEST, FEATURES
from service.core.text_identity import identity
from service.core.types import Bools, Doubles, PredictOptions, ScoreKind
from training.evaluation.noise import nonsense
from training.evaluation.posted_labels import PostedLabels, posted_id
from training.progress import Report

FEWEST_ROWS = 100  # with fewer hidden rows, nothing is fitted
KNOWN, NONSENSE, POSTED = 0.3, 0.3, 0.1  # weights of such queries, against all rows as they are
_POSTED_LABELS = 200
_UNITS = 8
_DECAY = 1e-3 / _UNITS  # of the squared weights
_STEPS = 500


class Sample(NamedTuple):
    """Labels of one query: their features [k, F], which are relevant [k], and their weight."""

    features: Doubles
    relevant: Bools
    weight: float


def fit_confidence(hidden: HiddenRows, *, report: Report) -> Manifest:
    """Return the bundle's manifest with its confidences, if enough rows can be hidden."""
    facts = hidden.bundle.manifest
    if len(hidden.rows) < FEWEST_ROWS:
        return facts
    kinds: list[ScoreKind] = ["votes"] if facts.reranker is None else ["votes", "probability"]
    fitted = {}
    for kind in kinds:
        options = complete_options(facts, top_k=SHOWN, rerank=kind == "probability")
        fitted[kind] = fitted_network(list(_samples(hidden, options, report)))
    return replace(facts, confidence=fitted)


def _samples(hidden: HiddenRows, options: PredictOptions, report: Report) -> Iterator[Sample]:
    rows, chance, view = hidden.rows, Random(0), hidden.view
    texts = list(map(hidden.text, rows))
    typed = [*texts, *hidden.typos()]
    # Half as many queries of nonsense suffice.
    meaningless = [nonsense(text, chance) for text in texts[::2]]
    queries = list(zip([*rows, *rows, *rows[::2]], [*typed, *meaningless], strict=True))
    total = len(queries)
    report("fit confidences", 0, total)
    asked = hidden.ask(
        queries, options, progress=lambda done: report("fit confidences", done, total)
    )
    for place, one in enumerate(asked[: len(typed)]):
        row = place % len(rows)
        labels = hidden.labels_of(rows[row])
        yield _sample(view, one, meant=texts[row], relevant=labels, weight=1.0)
    for text, one in zip(meaningless, asked[len(typed) :], strict=True):
        yield _sample(view, one, meant=text, relevant=(), weight=2 * NONSENSE)
    known = hidden.ask_views([view] * len(rows), texts, options)
    for row, text, one in zip(rows, texts, known, strict=True):
        yield _sample(view, one, meant=text, relevant=hidden.labels_of(row), weight=KNOWN)
    posted = PostedLabels.of(hidden.bundle, hidden.encoder, count=_POSTED_LABELS, chance=chance)
    codes = posted.typed_codes(chance)
    answers = hidden.ask_views([posted.view] * len(codes), codes, options)
    for place, one in enumerate(answers):
        column = posted.view.labels.column(posted_id(place))
        assert column is not None  # it was posted
        weight = POSTED * len(rows) / len(codes)
        yield _sample(posted.view, one, meant=codes[place], relevant=(column,), weight=weight)


def _sample(
    view: View, asked: Asked, *, meant: str, relevant: Sequence[int], weight: float
) -> Sample:
    """Judge the labels of a query: `relevant` columns and labels of the text `meant` are right."""
    labels, same = view.labels, identity(meant)
    hits = [
        column in relevant or same in map(identity, labels.texts_at(column))
        for column in asked.columns
    ]
    return Sample(features=asked.features, relevant=np.array(hits, bool), weight=weight)


def fitted_network(samples: Sequence[Sample]) -> ConfidenceFacts:
    """Fit the network of `prediction.confidence` by its log loss, with a penalty on its weights."""
    features = np.concatenate([sample.features for sample in samples])  # [n, F]
    relevant = np.concatenate([sample.relevant for sample in samples]).astype(np.float64)  # [n]
    weights = np.repeat(
        [sample.weight for sample in samples], [len(sample.relevant) for sample in samples]
    )  # [n]
    means, scales = features.mean(axis=0), features.std(axis=0) + 1e-9
    inputs = np.clip((features - means) / scales, -FARTHEST, FARTHEST)
    inputs = np.column_stack([inputs, np.ones(len(inputs))])  # [n, F + 1]
    loss = _loss(inputs, relevant, weights / weights.sum())
    size = _UNITS * inputs.shape[1] + _UNITS + 1
    start = np.random.default_rng(0).normal(0.0, 0.5, size)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    hidden, output = np.split(found, [_UNITS * inputs.shape[1]])
    return ConfidenceFacts(
        features=list(FEATURES),
        means=means.tolist(),
        scales=scales.tolist(),
        hidden=hidden.reshape(_UNITS, -1).tolist(),
        output=output.tolist(),
    )


def _loss(
    inputs: Doubles, relevant: Doubles, weights: Doubles
) -> Callable[[Doubles], tuple[float, Doubles]]:
    """Return the log loss and its gradient as a function of all numbers of the network."""

    def loss(numbers: Doubles) -> tuple[float, Doubles]:
        hidden = numbers[: -_UNITS - 1].reshape(_UNITS, -1)  # [H, F + 1]
        output, offset = numbers[-_UNITS - 1 : -1], numbers[-1]
        units = np.tanh(inputs @ hidden.T)  # [n, H]
        logits = units @ output + offset  # [n]
        errors = weights * (1.0 / (1.0 + np.exp(-logits)) - relevant)
        of_units = np.outer(errors, output) * (1.0 - units * units)
        gradient = np.concatenate([(of_units.T @ inputs).ravel(), units.T @ errors, [errors.sum()]])
        total = weights @ (np.logaddexp(0.0, logits) - relevant * logits)
        return float(total + _DECAY * numbers @ numbers), gradient + 2.0 * _DECAY * numbers

    return loss
