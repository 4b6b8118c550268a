"""All ways of prediction with one encoder's vectors: Tables 4, 5 and 8 and Figure 3 of RAE-XMC.

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

from service.core.types import Floats, Role, Rows
from training.checkpoints.choices import UNCHOSEN, Choices, read_choices
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import Relevance, with_relevance
from training.evaluation.answers import Answers, best_answers
from training.evaluation.encode_texts import encode_texts, label_keys
from training.evaluation.metrics import labels_to_rank
from training.evaluation.prediction import (
    OfflineMemory,
    Ranked,
    RetrievedKeys,
    predict,
    predict_separately,
    retrieve,
)
from training.evaluation.results import Result, measured
from training.experiments.query_items import QueryItems, linked_to_test_rows, query_items
from training.models.precision import Precision
from training.models.torch_encoder import TorchEncoder, load_encoder
from training.models.two_heads import require_heads, with_share
from training.progress import Report
from training.selection.memory_choices import DEPTHS as CHOOSABLE
from training.selection.memory_choices import choose_on
from training.selection.validation import (
    Slices,
    ValidationSettings,
    default_slices,
    retrieve_held_out,
)

MEMORIZATIONS = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # Table 8
DEPTHS = (10, 25, 50, 100, 200, 400)  # Figure 3
SEPARATE_MEMORIZATIONS = (0.3, 0.5, 0.7)  # Table 4; at 0 and 1 Eq. 11 equals Eq. 7
SEPARATE = "separate"
ONE_BLOCK = {0.0: "labels only", 1.0: "instances only"}

Measured = tuple[Result, NDArray[np.float64]]  # a result and the metrics of each row, [n, 3]


def _silent(stage: str, done: int, total: int) -> None:
    """A `Report` that shows nothing."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to predict; `method` is `SEPARATE` for Eq. 11, any other name for Eq. 7."""

    method: str
    memorization: float
    depth: int
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class EncoderScores:
    """An encoder's choices and its results, the chosen result first."""

    choices: Choices
    results: list[Measured]
    held_out_rows: int  # on which the choices were made


@dataclass(frozen=True, kw_only=True, eq=False)
class Scoring:
    """An encoder's vectors of a data set and its choices, before the test rows are ranked."""

    dataset: Dataset
    choices: Choices
    held_out_rows: int  # on which the choices were made
    memory: OfflineMemory
    queries: Floats  # [n, d], all test rows
    items: QueryItems | None = None  # where the system reads metadata items
    report: Report = _silent
    weighted: bool = False  # add the metrics in which a more relevant label counts more

    @cached_property
    def retrieved(self) -> RetrievedKeys:
        """The nearest keys of all test rows, as many as the deepest way needs."""
        return retrieve(
            self.memory,
            self.queries,
            depth=max(*DEPTHS, self.choices.depth),
            progress=lambda done: self.report("retrieve", done, len(self.queries)),
        )

    def attending(self, items: Literal["predicted", "linked"]) -> Scoring:
        """The same memory for test rows that attend to predicted or to linked items.

        Raises `InvalidInput` for linked ones where the system reads no items.
        """
        if items == "predicted":
            return self
        return self.with_items(linked_to_test_rows(self.items, self.dataset))

    def with_items(self, places: Rows) -> Scoring:
        """The same memory for test rows that attend to the items at `places` [n, m]."""
        assert self.items is not None
        return replace(self, queries=self.items.fused(places))

    def answers(self, rows: Rows, *, encoder: str) -> Answers:
        """The best labels of some test rows [m], in the chosen way."""
        choices = self.choices
        similarities, keys = self.retrieved.voting(choices.memorization, choices.depth)
        return best_answers(
            self.memory,
            (similarities[rows], keys[rows]),
            self.dataset.test,
            rows,
            choices=choices,
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
        """Rank and measure the test rows in the chosen way alone, with no deeper search."""
        retrieved = retrieve(self.memory, self.queries, depth=self.choices.depth)
        return self._measured(sweep_ways(self.choices)[0], retrieved)

    def _measured(self, way: Way, retrieved: RetrievedKeys) -> Measured:
        return measured(
            self.dataset,
            self._ranked(way, retrieved),
            method=way.method,
            memorization=way.memorization,
            depth=way.depth,
            tau=self.choices.tau,
            chosen=way.chosen,
            weighted=self.weighted,
        )

    def _ranked(self, way: Way, retrieved: RetrievedKeys) -> Ranked:
        top_k = labels_to_rank(self.dataset.test.filtered)
        if way.method == SEPARATE:
            return predict_separately(
                self.memory,
                retrieved.voting(1.0, way.depth),
                retrieved.voting(0.0, way.depth),
                tau=self.choices.tau,
                memorization=way.memorization,
                top_k=top_k,
                order=self.memory.label_order,
            ).labels
        return predict(
            self.memory,
            retrieved.voting(way.memorization, way.depth),
            tau=self.choices.tau,
            memorization=way.memorization,
            top_k=top_k,
            order=self.memory.label_order,
        ).labels


def sweep_ways(choices: Choices) -> list[Way]:
    """The chosen way, then all lambdas, all depths, and Eq. 11."""

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


def score_encoder(
    name: str,
    dataset: Dataset,
    *,
    folder: Path | None,
    slices: Slices | None = None,
    precision: Precision = "fp32",
) -> EncoderScores:
    """Measure an encoder by all ways of prediction; parameters as in `open_scoring`."""
    scoring = open_scoring(name, dataset, folder=folder, slices=slices, precision=precision)
    return EncoderScores(
        choices=scoring.choices,
        results=list(scoring.results()),
        held_out_rows=scoring.held_out_rows,
    )


def open_scoring(
    name: str,
    dataset: Dataset,
    *,
    folder: Path | None,
    slices: Slices | None = None,
    precision: Precision = "fp32",
    relevance: Relevance | None = None,
    head_share: float | None = None,
    report: Report = _silent,
    encoder: TorchEncoder | None = None,
) -> Scoring:
    """Encode a data set and choose tau, lambda and b; `folder` is a run's, which may hold choices.

    Without choices in the folder they are made on `slices`, training rows that the encoder never
    saw; default: `default_slices`. `relevance` replaces the one in the folder, and `head_share` the
    share that D of UniDEC's two heads has in the encoder's vectors. Raises `InvalidInput` for a
    share where the encoder has no heads. `encoder` is that of `name`, where it is loaded already.
    """
    choices = read_choices(folder) if folder is not None else None
    if relevance is None and choices is not None:
        relevance = choices.relevance
    dataset = with_relevance(dataset, relevance)
    train, held = dataset.train, slices
    encoder = encoder or load_encoder(name)
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
        memory=OfflineMemory(
            keys=np.concatenate([instances, labels]).astype(np.float16),
            labels_of=train.labels_of,
            label_ids=dataset.labels.uids,
        ),
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
    """Unit vectors of training rows [N, d], test rows [n, d] and label keys [L, d]."""
    train, test = dataset.train, dataset.test
    heads = None if head_share is None else require_heads(encoder.model, encoder.name)
    encode = partial(encode_texts, encoder, precision=precision)
    shown = partial(_shown, report, total=len(train) + len(test) + len(dataset.labels))
    instances = encode(train.instances.texts, role=Role.QUERY, progress=shown(0))
    queries = encode(test.instances.texts, role=Role.QUERY, progress=shown(len(train)))
    before = len(train) + len(test)
    labels = label_keys(partial(encode, progress=shown(before)), dataset, folder=folder)
    if heads is None or head_share is None:
        return instances, queries, labels
    reweighted = partial(with_share, share=head_share, encoder=heads.encoder)
    return reweighted(instances), reweighted(queries), reweighted(labels)


def _shown(report: Report, before: int, *, total: int) -> Callable[[int], None]:
    """Report the texts of one call of several; `before` are those of the calls before."""
    return lambda done: report("encode", before + done, total)


def choices_for(dataset: Dataset, instances: Floats, labels: Floats, *, slices: Slices) -> Choices:
    """The best tau, lambda and b on held-out rows, chosen as for an encoder that we trained."""
    if not len(slices.held_out):
        return UNCHOSEN
    depth = max(*CHOOSABLE, UNCHOSEN.depth)
    held_out = retrieve_held_out(dataset, slices, instances, labels, depth=depth)
    return choose_on(held_out, UNCHOSEN, metrics=ValidationSettings().metrics)
