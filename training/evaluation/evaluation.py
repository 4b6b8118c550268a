"""Evaluation of a bundle on a data set's test rows: retrieval and ranking as the service does them.

Shapes: n test rows, d dimensions, b retrieved keys a row, k ranked labels a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.encoding.encoder import OnnxEncoder, encode_all, open_query_encoder
from service.core.errors import InvalidInput
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.many_queries import LabelOrder, RankedLabels
from service.core.prediction.predictor import voting_kind
from service.core.prediction.reranking.many_queries import candidates_of, rerank_labels
from service.core.prediction.reranking.reranker import Reranker, open_reranker
from service.core.types import Floats, PredictOptions, Role, RowKind
from training.datasets.dataset import Dataset
from training.datasets.propensity import inverse_propensity
from training.evaluation.given_items import linked_places
from training.evaluation.metrics import evaluate as measure
from training.evaluation.metrics import labels_to_rank
from training.evaluation.prediction import Neighbours, predict
from training.evaluation.weighted_metrics import weighted_table
from training.progress import Report

Items = Literal["predicted", "linked"]  # that a test row attends to

_CHUNK_ROWS = 512  # test rows that are searched between two progress reports


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """The metrics, in percent, at one value of lambda."""

    memorization: float
    depth: int
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A bundle's memory and encoded test rows, ready to be ranked at any lambda."""

    view: View
    tau: float
    order: LabelOrder
    dataset: Dataset
    vectors: Floats  # [n, d]
    options: PredictOptions
    report: Report
    reranker: Reranker | None = None  # of a bundle that ranks a second time
    weighted: bool = False  # add the metrics in which a more relevant label counts more

    def rows(self, memorizations: Sequence[float]) -> Iterator[EvaluationRow]:
        """Measure at each lambda; lambdas that search the same block of keys share one search."""
        retrieved: dict[RowKind | None, Neighbours] = {}
        weights = inverse_propensity(
            self.dataset.train.labels_of,
            a=self.dataset.propensity.a,
            b=self.dataset.propensity.b,
        )
        for place, memorization in enumerate(memorizations):
            kind = voting_kind(memorization)
            if kind not in retrieved:
                retrieved[kind] = self.retrieve(kind)
            ranked, test = self.ranked(retrieved[kind], memorization).labels, self.dataset.test
            metrics = measure(
                ranked, test.labels_of, inverse_propensities=weights, filtered=test.filtered
            )
            if self.weighted:
                metrics |= weighted_table(ranked, test.labels_of, filtered=test.filtered)
            self.report("rank", place + 1, len(memorizations))
            yield EvaluationRow(
                memorization=memorization, depth=self.options.depth, metrics=metrics
            )

    def retrieve(self, kind: RowKind | None) -> Neighbours:
        """The nearest keys of a kind (None: both) of all test rows, [n, b] each."""
        found = [
            self.view.retrieve(
                self.vectors[chunk],
                depth=self.options.depth,
                kind=kind,
                exact=self.options.exact,
            )
            for chunk in self._chunks()
        ]
        similarities, rows = zip(*found, strict=True)
        return np.concatenate(similarities), np.concatenate(rows)

    def ranked(self, retrieved: Neighbours, memorization: float) -> RankedLabels:
        """The labels of all test rows, [n, k]."""
        top_k, reranker = self.options.top_k, self.reranker
        ranked = predict(
            self.view,
            retrieved,
            tau=self.tau,
            memorization=memorization,
            top_k=top_k if reranker is None else max(top_k, reranker.facts.candidates),
            order=self.order,
        )
        if reranker is None:
            return ranked
        texts = self.dataset.test.instances.texts
        return rerank_labels(
            reranker,
            reranker.labels_of(self.view),
            candidates_of(texts, self.vectors, retrieved, ranked),
            top_k=top_k,
            order=self.order,
        )

    def _chunks(self) -> Iterator[slice]:
        rows = len(self.vectors)
        for start in range(0, rows, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, rows)
            yield slice(start, stop)
            self.report("retrieve", stop, rows)


def open_evaluation(
    bundle: Bundle,
    dataset: Dataset,
    *,
    depth: int,
    exact: bool,
    threads: int,
    report: Report,
    items: Items = "predicted",
    rerank: bool | None = None,
) -> Evaluation:
    """Encode the test rows for a bundle; `exact` scans every key in place of the graph.

    `rerank` is as in a request: None for a second ranking where the bundle has one.

    With an item memory they attend to the items that are predicted, or to those that the data link
    them to. Raises `InvalidInput` when the bundle was made from other labels, as `linked_places`,
    and `NotInBundle` where `rerank` asks for what the bundle has not.
    """
    options = bundle.manifest.options(
        PredictOptions(top_k=labels_to_rank(dataset.test.filtered), exact=exact),
        depth=depth,
        rerank=rerank,
    )
    if list(bundle.label_ids) != list(dataset.labels.uids):
        raise InvalidInput(
            f"bundle {bundle.manifest.name} was made from {bundle.manifest.dataset!r};"
            f" its labels are not those of {dataset.name!r}"
        )
    view = KnowledgeMemory(bundle).view
    given = linked_places(view.items, dataset) if items == "linked" else None
    vectors = _encoded(bundle, dataset.test.instances.texts, threads=threads, report=report)
    return Evaluation(
        view=view,
        tau=bundle.manifest.predictor.tau,
        order=LabelOrder.of(dataset.labels.uids),
        dataset=dataset,
        vectors=view.fused(vectors, given).vectors,  # as the service does with an item memory
        options=options,
        report=report,
        reranker=open_reranker(bundle) if options.candidates else None,
    )


def _encoded(bundle: Bundle, queries: Sequence[str], *, threads: int, report: Report) -> Floats:
    """The vectors [n, d] of queries."""
    return encode_all(
        open_query_encoder(bundle, OnnxEncoder(bundle.folder, bundle.manifest.encoder)),
        queries,
        role=Role.QUERY,
        threads=threads,
        progress=lambda done: report("encode", done, len(queries)),
    )
