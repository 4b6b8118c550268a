"""Evaluate a bundle on a data set's test rows, with the retrieval and ranking of the service.

Shapes: n test rows, d dimensions, b retrieved keys per row, k ranked labels per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import InvalidInput, echoed
from service.core.index.protocol import batches
from service.core.items.item_memory import ItemMemory
from service.core.label_filter import LabelFilter
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.shards import FoundRows
from service.core.memory.view import View
from service.core.options import complete_options
from service.core.prediction.predictor import Predictor, as_typed, voting_kind
from service.core.prediction.ranking import Query, Stopwatch, searched_queries
from service.core.prediction.reranking.reranker import open_reranker
from service.core.types import Floats, PredictOptions, RowKind, Rows, Spelling
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import NO_ITEM, all_linked, require_metadata
from training.evaluation.metrics import evaluate as measure
from training.evaluation.metrics import labels_to_rank, unfiltered_positives
from training.evaluation.prediction import Neighbours, RankedLabels
from training.evaluation.retrieval import (
    CHUNK_ROWS,
    Elsewhere,
    encode_rows,
    nearest_keys,
    nearest_keys_elsewhere,
)
from training.evaluation.weighted_metrics import weighted_table
from training.progress import Report


def linked_places(memory: ItemMemory | None, dataset: Dataset) -> Sequence[Rows]:
    """The positions in `memory` of each test row's items [m], the rarest in training first.

    Items are found by id. Raises `InvalidInput` for a bundle without an item memory, for data
    without metadata, and for an item of a test row that the bundle does not have.
    """
    if memory is None:
        raise InvalidInput("--items linked is for a bundle with an item memory; this one has none")
    items = require_metadata(dataset, reader="--items linked gives")
    assert dataset.test.metadata_of is not None
    linked = all_linked(dataset.test.metadata_of, dataset)
    place_of = np.full(len(items), NO_ITEM, np.int64)
    for column in np.unique(linked[linked != NO_ITEM]).tolist():
        place = memory.find(items.uids[column])
        if place is None:
            raise InvalidInput(
                f"the bundle has no item with the id {echoed(items.uids[column])}, to which data"
                f" set {dataset.name} links test rows"
            )
        place_of[column] = place
    return [place_of[row[row != NO_ITEM]] for row in linked]


Items = Literal["predicted", "linked"]  # the items that a test row attends to


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """The metrics, in percent, at one value of lambda."""

    memorization: float
    depth: int
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A bundle's memory and the encoded test rows, ready to be ranked at any lambda.

    Under the filter `wanted`, `view` and `dataset` have only the labels that pass, and the test
    rows with such a label. The search is then deeper until enough of these labels are found.
    """

    view: View
    predictor: Predictor
    dataset: Dataset
    texts: Sequence[str]  # [n], the test rows as they are read
    vectors: Floats  # [n, d]
    options: PredictOptions
    report: Report
    weighted: bool = False  # also compute the metrics in which a more relevant label counts more
    wanted: LabelFilter | None = None
    elsewhere: Elsewhere | None = None  # a cluster that searches; None: this process does

    def rows(self, memorizations: Sequence[float]) -> Iterator[EvaluationRow]:
        """Measure at each lambda. Lambdas that search the same block of keys share one search."""
        retrieved: dict[RowKind | None, Neighbours] = {}
        weights = self.dataset.inverse_propensities()
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
        """The nearest keys of a kind (None: both) for all test rows, [n, b] each."""
        texts, vectors, options = self.texts, self.vectors, self.options

        def progress(done: int) -> None:
            self.report("retrieve", done, len(vectors))

        if self.elsewhere is not None:
            return nearest_keys_elsewhere(
                self.elsewhere,
                texts,
                vectors,
                options=options,
                wanted=self.wanted,
                kind=kind,
                progress=progress,
            )
        return nearest_keys(
            self.view,
            texts,
            vectors,
            options=options,
            kind=kind,
            progress=progress,
        )

    def ranked(self, retrieved: Neighbours, memorization: float) -> RankedLabels:
        """The ranked labels of all test rows, [n, k]."""
        options, watch = replace(self.options, memorization=memorization), Stopwatch()
        read = [Query.read(self.view, as_typed(text), watch) for text in self.texts]
        ranked = RankedLabels.none(len(read), options.top_k)
        searched = searched_queries(read, self.vectors, FoundRows(*retrieved))
        for row, (_, ranking) in enumerate(self.predictor.rank(searched, options)):
            found = len(ranking.columns)
            ranked.labels[row, :found] = ranking.columns
            ranked.scores[row, :found] = ranking.scores
        return ranked


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
    spelling: Spelling | None = None,
    wanted: LabelFilter | None = None,
    elsewhere: Elsewhere | None = None,
) -> Evaluation:
    """Encode the test rows for a bundle; `exact` scans every key instead of the graph.

    A cluster `elsewhere` encodes, and later searches.

    `rerank` and `spelling` work as in a request, and so does the filter `wanted`: the rows are
    those of `passing_rows`. With an item memory, rows attend to predicted `items`, or to those that
    the data link them to. Raises `InvalidInput` for a bundle of other labels, for a filter that
    leaves no row, and as `linked_places`, `NotInBundle` if it lacks a reranker.
    """
    options = complete_options(
        bundle.manifest,
        top_k=labels_to_rank(dataset.test.filtered),
        exact=exact,
        depth=depth,
        rerank=rerank,
        spelling=spelling,
    )
    if list(bundle.label_ids) != list(dataset.labels.uids):
        raise InvalidInput(
            f"bundle {bundle.manifest.name} was made from {bundle.manifest.dataset!r};"
            f" its labels are not those of {dataset.name!r}"
        )
    memory = KnowledgeMemory(bundle)
    view = memory.only(memory.view, wanted)
    if wanted is not None:
        dataset = passing_rows(dataset, view)
    given = linked_places(view.items, dataset) if items == "linked" else None
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    predictor = Predictor(
        encoder,
        tau=bundle.manifest.predictor.tau,
        reranker=open_reranker(bundle) if options.candidates else None,
    )
    texts = texts_as_read(predictor, view, dataset.test.instances.texts, options)
    vectors = encode_rows(
        encoder,
        texts,
        threads=threads,
        progress=lambda done: report("encode", done, len(texts)),
        elsewhere=elsewhere,
    )
    return Evaluation(
        view=view,
        predictor=predictor,
        dataset=dataset,
        texts=texts,
        vectors=view.fused(vectors, given).vectors,  # fused with items, as in the service
        options=options,
        report=report,
        wanted=wanted,
        elsewhere=elsewhere,
    )


def passing_rows(dataset: Dataset, view: View) -> Dataset:
    """Return the data set with the test rows that have a label in a filtered `view`.

    They have no other labels. Raises `InvalidInput` if there is no such row.
    """
    test, labels_of = dataset.test, dataset.test.labels_of.copy()
    labels_of.data[view.labels.is_deleted(labels_of.indices)] = 0.0
    labels_of.eliminate_zeros()
    rows = np.flatnonzero(np.diff(unfiltered_positives(labels_of, test.filtered).indptr))
    if not len(rows):
        why = "".join(f"; {warning}" for warning in view.filter_warnings)
        raise InvalidInput(f"no test row has a relevant label that passes the filter{why}")
    return replace(dataset, test=replace(test, labels_of=labels_of).select(rows))


def texts_as_read(
    predictor: Predictor, view: View, queries: Sequence[str], options: PredictOptions
) -> list[str]:
    """Return the texts [n] that the service would search for queries [n], corrected if it does."""
    watch = Stopwatch()
    readings = predictor.read(view, queries, options, watch)
    texts = [of_query[0].text for of_query in readings]
    several = [place for place, of_query in enumerate(readings) if len(of_query) > 1]
    for batch in batches(len(several), CHUNK_ROWS):
        own = [readings[place] for place in several[batch]]
        searched = predictor.searched(view, own, predictor.encode(own, watch), options, watch)
        for place, query in zip(several[batch], searched, strict=True):
            texts[place] = query.reading.text
    return texts
