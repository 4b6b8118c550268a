"""Evaluation of a bundle on a data set's test rows, by the same predictor that serves.

Shapes: n test rows, d dimensions, b retrieved keys a row, k ranked labels a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from service.core.bundle.bundle import Bundle
from service.core.encoding.encoder import OnnxEncoder, encode_all
from service.core.errors import InvalidInput
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor, voting_kind
from service.core.types import Floats, PredictOptions, Role, RowKind, Rows
from training.datasets.dataset import Dataset
from training.datasets.propensity import inverse_propensity
from training.evaluation.metrics import evaluate as measure
from training.progress import Report

RANKED = 100  # the deepest metric is R@100
_CHUNK_ROWS = 512  # test rows between two progress reports

Retrieved = tuple[Floats, Rows]  # similarities and rows, [n, b] each


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """The metrics, in percent, at one value of lambda."""

    memorization: float
    depth: int
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A bundle and encoded test rows, ready to be ranked at any lambda."""

    predictor: Predictor
    view: View
    dataset: Dataset
    vectors: Floats  # [n, d]
    options: PredictOptions
    report: Report

    def rows(self, memorizations: Sequence[float]) -> Iterator[EvaluationRow]:
        """Measure once for each lambda; keys are retrieved once for those that search the same."""
        retrieved: dict[RowKind | None, list[Retrieved]] = {}
        weights = inverse_propensity(
            self.dataset.train.labels_of,
            a=self.dataset.propensity.a,
            b=self.dataset.propensity.b,
        )
        for memorization in memorizations:
            options = replace(self.options, memorization=memorization)
            kind = voting_kind(memorization)
            if kind not in retrieved:
                retrieved[kind] = self._retrieve(options)
            metrics = measure(
                self._rank(retrieved[kind], options),
                self.dataset.test.labels_of,
                inverse_propensities=weights,
                filtered=self.dataset.test.filtered,
            )
            yield EvaluationRow(memorization=memorization, depth=options.depth, metrics=metrics)

    def _retrieve(self, options: PredictOptions) -> list[Retrieved]:
        return [
            self.predictor.retrieve(self.view, self.vectors[chunk], options)
            for chunk in self._chunks("retrieve")
        ]

    def _rank(self, retrieved: list[Retrieved], options: PredictOptions) -> NDArray[np.int64]:
        """Columns of V, [n, k], the best first; -1 where nothing is left to rank."""
        ranked = np.full((len(self.vectors), options.top_k), -1, np.int64)
        chunks = self._chunks(f"rank at lambda {options.memorization:g}")
        for chunk, keys in zip(chunks, retrieved, strict=True):
            for row, ranking in enumerate(self.predictor.vote(self.view, keys, options)):
                ranked[chunk.start + row, : len(ranking.columns)] = ranking.columns
        return ranked

    def _chunks(self, what: str) -> Iterator[slice]:
        rows = len(self.vectors)
        for start in range(0, rows, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, rows)
            yield slice(start, stop)
            self.report(what, stop, rows)


def open_evaluation(
    bundle: Bundle, dataset: Dataset, *, depth: int, exact: bool, threads: int, report: Report
) -> Evaluation:
    """Encode the test rows for a bundle; `exact` scans every key in place of the graph.

    Raises `InvalidInput` when the bundle was made from other labels.
    """
    if list(bundle.label_ids) != list(dataset.labels.uids):
        raise InvalidInput(
            f"bundle {bundle.manifest.name} was made from {bundle.manifest.dataset!r};"
            f" its labels are not those of {dataset.name!r}"
        )
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    texts = dataset.test.instances.texts
    # Filtered labels are removed from the ranking later, so more must be ranked.
    most_filtered = int(np.diff(dataset.test.filtered.indptr).max(initial=0))
    return Evaluation(
        predictor=Predictor(encoder, tau=bundle.manifest.predictor.tau),
        view=KnowledgeMemory(bundle).view,
        dataset=dataset,
        vectors=encode_all(
            encoder,
            texts,
            role=Role.QUERY,
            threads=threads,
            progress=lambda done: report("encode", done, len(texts)),
        ),
        options=PredictOptions(top_k=RANKED + most_filtered, depth=depth, exact=exact),
        report=report,
    )
