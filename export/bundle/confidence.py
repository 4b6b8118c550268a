"""Fits the confidences of a bundle's keywords on hidden rows, as they are asked by people.

| query                                          | weight | which labels are relevant         |
|------------------------------------------------|-------:|-----------------------------------|
| a hidden row's text, as it is and with a typo  |   1, 1 | the row's                         |
| nonsense: random or shuffled letters, codes    |    0.3 | none                              |
| the code of a label that was posted            |    0.1 | this label                        |

A label of which a text or alias is the query is relevant, too, whether or not the data say so.

Shapes: n labels of all queries, F features, H hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from export.bundle.hidden_rows import HiddenRows
from service.core.bundle.manifest import ConfidenceFacts, Manifest
from service.core.memory.view import View
from service.core.prediction.confidence import FARTHEST, FEATURES, features_of
from service.core.prediction.predictor import Stopwatch, texts_of
from service.core.text_identity import identity
from service.core.types import Bools, Doubles, PredictOptions, ScoreKind
from training.evaluation.noise import nonsense, with_typo
from training.evaluation.posted_labels import PostedLabels, posted_id
from training.progress import Report

FEWEST_ROWS = 100  # with fewer hidden rows, nothing is fitted
SHOWN = 10  # keywords of a query
NONSENSE, POSTED = 0.3, 0.1  # weights of all such queries, against all rows as they are
_POSTED_LABELS = 200
_REPORTED = 100  # rows
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
        reranks = kind == "probability"
        asking = Asking(hidden, facts.options(PredictOptions(top_k=SHOWN), rerank=reranks))
        fitted[kind] = fitted_network(list(_samples(asking, report)))
    return replace(facts, confidence=fitted)


def _samples(asking: Asking, report: Report) -> Iterator[Sample]:
    hidden, chance = asking.hidden, Random(0)
    rows = hidden.rows
    for place, row in enumerate(rows):
        if place % _REPORTED == 0:
            report("fit confidences", place, len(rows))
        query, view, labels = hidden.text(row), hidden.without(row), hidden.labels_of(row)
        for text in (query, with_typo(query, chance) or query):
            yield asking.sample(view, text, meant=query, relevant=labels, weight=1.0)
        if place % 2 == 0:  # half as many queries suffice
            weight = 2 * NONSENSE
            typed = nonsense(query, chance)
            yield asking.sample(view, typed, meant=typed, relevant=(), weight=weight)
    posted = PostedLabels.of(hidden.bundle, hidden.encoder, count=_POSTED_LABELS, chance=chance)
    for place, code in enumerate(posted.typed_codes(chance)):
        column = posted.view.labels.column(posted_id(place))
        assert column is not None  # it was posted
        weight = POSTED * len(rows) / len(posted.codes)
        yield asking.sample(posted.view, code, meant=code, relevant=(column,), weight=weight)
    report("fit confidences", len(rows), len(rows))


@dataclass(frozen=True)
class Asking:
    """Asks queries with a bundle's own options."""

    hidden: HiddenRows
    options: PredictOptions

    def sample(
        self,
        view: View,
        query: str,
        *,
        meant: str,
        relevant: Sequence[int],
        weight: float,
    ) -> Sample:
        """Ask a query; the `relevant` columns and labels of the text `meant` are relevant."""
        predictor, watch = self.hidden.predictor, Stopwatch()
        readings = predictor.read(view, [query], self.options, watch)
        encoded = predictor.encode(texts_of(readings), watch)
        fused = predictor.fuse(view, encoded, self.options, watch)
        searched = predictor.search(view, readings, fused.vectors, self.options)
        [ranking] = predictor.rank(view, searched, self.options, watch)
        [reading] = searched.readings
        features = features_of(view, reading, ranking)
        labels, same = view.labels, identity(meant)
        hits = [
            column in relevant or same in map(identity, labels.texts_at(column))
            for column in ranking.columns
        ]
        return Sample(features=features, relevant=np.array(hits, bool), weight=weight)


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
