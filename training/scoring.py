"""Measures all ways to predict with an encoder: Tables 4, 5 and 8 and Figure 3 of RAE-XMC.

Shapes: N training rows, L labels, n test rows, M metadata items, m items of a query, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.core.errors import InvalidInput
from service.core.types import Floats, Role, Rows
from training.checkpoints.choices import Choices, read_choices
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import all_linked, require_metadata
from training.datasets.pair_weights import Relevance, with_relevance
from training.evaluation.answers import Answers, best_answers
from training.evaluation.encode_texts import encode_texts, label_keys
from training.evaluation.metrics import labels_to_rank
from training.evaluation.prediction import (
    OfflineMemory,
    Ranked,
    RetrievedKeys,
    predict,
    retrieve,
)
from training.evaluation.results import Result, measured
from training.models.precision import Precision
from training.models.torch_encoder import TorchEncoder, load_encoder
from training.models.two_heads import require_heads, with_share
from training.progress import Report, say_nothing
from training.selection.memory_choices import choices_for
from training.selection.validation import Slices, default_slices
from training.systems.oak.memory import ItemVectors, has_item_memory, read_item_memory


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryItems:
    """The encoder's vectors of the test rows, not fused yet, and the item memory."""

    vectors: Floats  # [n, d]
    memory: ItemVectors

    def fused(self, places: Rows | None = None) -> Floats:
        """Return the vectors fused with the items at `places` [n, m], by default the predicted."""
        return self.memory.fused(self.vectors, places)


def query_items(
    encoder: TorchEncoder,
    dataset: Dataset,
    queries: Floats,
    *,
    folder: Path | None,
    precision: Precision,
) -> QueryItems | None:
    """Return the test rows' vectors `queries` [n, d] with a checkpoint's item memory.

    Returns None if the checkpoint's system reads no items. Raises `InvalidInput` if it does, but
    the data set has no metadata.
    """
    if folder is None or not has_item_memory(folder):
        return None
    items = require_metadata(dataset, reader=f"{folder} looks up")
    keys = encode_texts(encoder, items.texts, role=Role.LABEL, precision=precision)
    return QueryItems(vectors=queries, memory=read_item_memory(folder, keys))


MEMORIZATIONS = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # Table 8
DEPTHS = (10, 25, 50, 100, 200, 400)  # Figure 3
SEPARATE_MEMORIZATIONS = (0.3, 0.5, 0.7)  # Table 4; at 0 and 1 Eq. 11 equals Eq. 7
SEPARATE = "separate"
ONE_BLOCK = {0.0: "labels only", 1.0: "instances only"}

Measured = tuple[Result, NDArray[np.float64]]  # a result and the metrics of each row, [n, 3]


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to predict; `method` is `SEPARATE` for Eq. 11, any other name for Eq. 7."""

    method: str
    memorization: float
    depth: int
    chosen: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Scoring:
    """An encoder's vectors of a data set and its choices, before the test rows are ranked."""

    dataset: Dataset
    choices: Choices
    held_out_rows: int  # on which the choices were made
    memory: OfflineMemory
    queries: Floats  # [n, d], all test rows
    items: QueryItems | None = None  # None if the system reads no metadata items
    report: Report = say_nothing
    weighted: bool = False  # add the metrics in which a more relevant label counts more

    @cached_property
    def retrieved(self) -> RetrievedKeys:
        """The nearest keys of all test rows, as many as the deepest way to predict needs."""
        return retrieve(
            self.memory,
            self.queries,
            depth=max(*DEPTHS, self.choices.depth),
            texts=self.dataset.test.instances.texts,
            progress=lambda done: self.report("retrieve", done, len(self.queries)),
        )

    def attending(self, items: Literal["predicted", "linked"]) -> Scoring:
        """Return this scoring with test rows that attend to predicted or to linked items.

        Raises `InvalidInput` for linked items if the system reads no items.
        """
        if items == "predicted":
            return self
        if self.items is None:
            raise InvalidInput("--items linked is for a run of OAK; this one looks up no items")
        assert self.dataset.test.metadata_of is not None
        return self.with_items(all_linked(self.dataset.test.metadata_of, self.dataset))

    def with_items(self, places: Rows) -> Scoring:
        """Return this scoring with test rows that attend to the items at `places` [n, m]."""
        assert self.items is not None
        return replace(self, queries=self.items.fused(places))

    def answers(self, rows: Rows, *, encoder: str) -> Answers:
        """Return the best labels of the given test rows, predicted in the chosen way."""
        similarities, keys = self.retrieved.of_choices(self.choices)
        return best_answers(
            self.memory,
            (similarities[rows], keys[rows]),
            self.dataset.test,
            rows,
            choices=self.choices,
            encoder=encoder,
        )

    def results(self) -> Iterator[Measured]:
        """Rank and measure the test rows: the chosen way first, then all sweeps."""
        ways = sweep_ways(self.choices)
        for place, way in enumerate(ways):
            result = self._measured(way, self.retrieved)
            self.report("rank", place + 1, len(ways))
            yield result

    def chosen(self) -> Measured:
        """Rank and measure the test rows in the chosen way only, without searching deeper."""
        texts = self.dataset.test.instances.texts
        retrieved = retrieve(self.memory, self.queries, depth=self.choices.depth, texts=texts)
        return self._measured(sweep_ways(self.choices)[0], retrieved)

    def _measured(self, way: Way, retrieved: RetrievedKeys) -> Measured:
        ranked = self._ranked(way, retrieved)
        tau, weighted = self.choices.tau, self.weighted
        return measured(self.dataset, ranked, tau=tau, weighted=weighted, **vars(way))

    def _ranked(self, way: Way, retrieved: RetrievedKeys) -> Ranked:
        searched = (1.0, 0.0) if way.method == SEPARATE else (way.memorization,)
        ways = (
            replace(self.choices, memorization=memorization, depth=way.depth)
            for memorization in searched
        )
        return predict(
            self.memory.values,
            *map(retrieved.of_choices, ways),
            tau=self.choices.tau,
            memorization=way.memorization,
            top_k=labels_to_rank(self.dataset.test.filtered),
            order=self.memory.label_order,
        ).labels


def sweep_ways(choices: Choices) -> list[Way]:
    """Return the chosen way, then all lambdas, all depths, and Eq. 11."""

    def joint(memorization: float, depth: int, *, chosen: bool = False) -> Way:
        method = ONE_BLOCK.get(memorization, "memory")
        return Way(method=method, memorization=memorization, depth=depth, chosen=chosen)

    return [
        joint(choices.memorization, choices.depth, chosen=True),
        *(joint(memorization, choices.depth) for memorization in MEMORIZATIONS),
        *(joint(choices.memorization, depth) for depth in DEPTHS if depth != choices.depth),
        *(
            Way(method=SEPARATE, memorization=memorization, depth=choices.depth)
            for memorization in SEPARATE_MEMORIZATIONS
        ),
    ]


def open_scoring(
    name: str,
    dataset: Dataset,
    *,
    folder: Path | None,
    slices: Slices | None = None,
    precision: Precision = "fp32",
    relevance: Relevance | None = None,
    head_share: float | None = None,
    report: Report = say_nothing,
) -> Scoring:
    """Encode a data set, and take tau, lambda and b from a run's `folder`, or choose them.

    They are chosen if the folder has none, on `slices`: training rows that the encoder never saw,
    by default `default_slices`. `relevance` replaces the folder's, and `head_share` the share that
    D of UniDEC's two heads has in the vectors. Raises `InvalidInput` for a share if the encoder has
    no heads.
    """
    choices = read_choices(folder) if folder is not None else None
    if relevance is None and choices is not None:
        relevance = choices.relevance
    dataset = with_relevance(dataset, relevance)
    train, held = dataset.train, slices
    encoder = load_encoder(name)
    instances, queries, labels = _encoded(
        encoder, dataset, folder=folder, precision=precision, head_share=head_share, report=report
    )
    items = query_items(encoder, dataset, queries, folder=folder, precision=precision)
    if items is not None:
        instances, queries = items.memory.fused(instances), items.fused()
    if choices is None:
        held = held or default_slices(train.labels_of, train.filtered)
        choices = choices_for(dataset, instances, labels, slices=held)
    return Scoring(
        dataset=dataset,
        choices=replace(choices, relevance=relevance),
        held_out_rows=len(held.held_out) if held is not None else 0,
        memory=OfflineMemory.of_training(dataset, instances, labels),
        queries=queries,
        items=items,
        report=report,
    )


def _encoded(
    encoder: TorchEncoder,
    dataset: Dataset,
    *,
    folder: Path | None,
    precision: Precision,
    head_share: float | None,
    report: Report,
) -> tuple[Floats, Floats, Floats]:
    """Return unit vectors of training rows [N, d], test rows [n, d] and label keys [L, d]."""
    train, test = dataset.train, dataset.test
    heads = None if head_share is None else require_heads(encoder.model, encoder.name)
    encode = partial(encode_texts, encoder, precision=precision)
    total = len(train) + len(test) + len(dataset.labels)

    def shown(before: int) -> Callable[[int], None]:
        return lambda done: report("encode", before + done, total)

    instances = encode(train.instances.texts, role=Role.QUERY, progress=shown(0))
    queries = encode(test.instances.texts, role=Role.QUERY, progress=shown(len(train)))
    encode_labels = partial(encode, progress=shown(len(train) + len(test)))
    labels = label_keys(encode_labels, dataset, folder=folder)
    if heads is None or head_share is None:
        return instances, queries, labels
    reweighted = partial(with_share, share=head_share, encoder=heads.encoder)
    return reweighted(instances), reweighted(queries), reweighted(labels)
