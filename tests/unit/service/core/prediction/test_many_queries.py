"""Ranking many queries at once gives the same bits as `Predictor` for one after the other."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.core.prediction.many_queries import (
    LabelOrder,
    rank_labels,
    retriever_distributions,
)
from service.core.prediction.predictor import Predictor, Searched
from service.core.prediction.ranking import NumpyRanker, Stopwatch
from service.core.types import Floats, PredictOptions, Reading, Rows
from tests.support.tiny.encoder import TrigramEncoder

TAU = 0.07


@dataclass
class Labels:
    """The part of `LabelTable` that ranking needs."""

    ids: list[str]
    boosts: None = None

    def id_at(self, column: int) -> str:
        return self.ids[column]


@dataclass
class Memory:
    """A memory whose rows of V are lists of labels; the first `instances` rows are instances."""

    value_rows: list[list[int]]
    instances: int
    labels: Labels
    weighted: bool = False
    has_rules: bool = False

    def is_instance(self, rows: Rows) -> Any:
        return rows < self.instances

    def weighted_votes(self, rows: Rows) -> Any:
        voted = [self.value_rows[row] for row in rows.tolist()]
        columns = np.array([label for labels in voted for label in labels], np.int32)
        counts = np.array([len(labels) for labels in voted], np.int64)
        weights = (1 + (columns + np.repeat(rows, counts)) % 3).astype(np.float32) / 2
        return columns, counts, weights if self.weighted else None


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    ids = draw(st.lists(st.text(max_size=3), min_size=1, max_size=8, unique=True))
    labels = st.lists(st.integers(0, len(ids) - 1), max_size=5, unique=True)
    instances = draw(st.lists(labels, max_size=300))
    identity = [[column] for column in range(len(ids))]
    weighted = draw(st.booleans())
    return Memory([*instances, *identity], len(instances), Labels(ids), weighted)


@st.composite
def retrievals(draw: st.DrawFn, memory: Memory) -> tuple[Floats, Rows]:
    """Up to 300 keys per query, fewer for some. Few distinct similarities make scores tie."""
    total = len(memory.value_rows)
    depth = draw(st.integers(1, total + 2))
    counts = draw(st.lists(st.integers(0, min(depth, total)), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps = draw(st.sampled_from([1, 3, 1000]))
    rows = np.full((len(counts), depth), -1, np.int64)
    similarities = np.full(rows.shape, -np.inf, np.float32)
    for query, count in enumerate(counts):
        rows[query, :count] = rng.permutation(total)[:count]
        drawn = rng.integers(-steps, steps + 1, count) / steps
        similarities[query, :count] = -np.sort(-drawn).astype(np.float32)
    return similarities, rows


@given(st.data(), memories(), st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(1, 10))
def test_labels_their_order_and_the_bits_of_their_scores_are_those_that_are_served(
    data: st.DataObject, memory: Memory, memorization: float, top_k: int
) -> None:
    similarities, rows = data.draw(retrievals(memory))
    at_once = rank_labels(
        memory,
        rows=rows,
        weights=retriever_distributions(similarities=similarities, rows=rows, tau=TAU),
        memorization=memorization,
        top_k=top_k,
        order=LabelOrder.of(memory.labels.ids),
    )
    predictor = Predictor(TrigramEncoder(), tau=TAU, ranker=NumpyRanker())
    searched = Searched(
        readings=[Reading(query="", text="")] * len(rows),
        vectors=similarities,
        similarities=similarities,
        rows=rows,
        places=range(len(rows)),
    )
    options = PredictOptions(top_k=top_k, memorization=memorization)
    one_by_one = list(predictor.rank(memory, searched, options, Stopwatch()))
    for labels, scores, expected in zip(at_once.labels, at_once.scores, one_by_one, strict=True):
        count = len(expected.columns)
        assert labels[:count].tolist() == expected.columns
        assert scores[:count].tobytes() == np.array(expected.scores).tobytes()
        assert (labels[count:] == -1).all()
        assert (scores[count:] == 0.0).all()
