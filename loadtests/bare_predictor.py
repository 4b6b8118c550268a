"""The predictor without the service, and the recall of its search.

The predictor is the baseline for the cost of HTTP, JSON and queueing. Recall is the share of the
truly nearest keys that the search returns.

Shapes: B queries, d dimensions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from loadtests.report import Row
from service.core.encoding.encoder import Encoder, encode
from service.core.index.choose_ef import recall_per_query
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.memory.view import View
from service.core.options import complete_options
from service.core.prediction.predictor import Predictor
from service.core.types import Doubles, Floats, PredictOptions, Role
from service.engine.loaded_bundle import load_bundle
from service.settings import EngineSettings

RECALL = 0.99


@dataclass(frozen=True, kw_only=True)
class BarePredictor:
    """The core's predictor, called as the engine does, in this process and thread, uncached."""

    encoder: Encoder
    predictor: Predictor
    view: View
    options: PredictOptions

    @classmethod
    def open(cls, bundle: Path) -> BarePredictor:
        """Open a bundle with all options that a service uses by default."""
        search_in_one_thread()
        loaded = load_bundle(bundle, None, EngineSettings(cached_queries=0))
        return cls(
            encoder=loaded.encoder,
            predictor=loaded.predictor,
            view=loaded.memory.view,
            options=complete_options(loaded.bundle.manifest),
        )

    def seconds(self, query: str) -> float:
        """Answer one query; return the seconds that it took."""
        start = perf_counter()
        self.predictor.predict(self.view, [query], self.options)
        return perf_counter() - start


def cpu_times(
    bare: BarePredictor,
    views: Mapping[str, Callable[[], View]],
    queries: Sequence[str],
    *,
    rounds: int = 1,
) -> dict[str, Doubles]:
    """Return the CPU seconds [rounds, B] of queries that each view answers one by one.

    The views take turns in an order that changes; a first round warms up.
    """
    times = {name: np.zeros((rounds + 1, len(queries))) for name in views}
    turns = deque(views)
    for number, (place, text) in product(range(rounds + 1), enumerate(queries)):
        for name in turns:
            start = process_time()
            bare.predictor.predict(views[name](), [text], bare.options)
            times[name][number, place] = process_time() - start
        turns.rotate()
    return {name: seconds[1:] for name, seconds in times.items()}


@dataclass(frozen=True, kw_only=True)
class Recall:
    """Mean and worst recall@depth over the queries."""

    queries: int
    depth: int
    mean: float
    worst: float


def recall_of_queries(encoder: Encoder, view: View, queries: Sequence[str]) -> Recall:
    """Measure the recall of queries at the bundle's depth b."""
    vectors = encode(encoder, queries, role=Role.QUERY)
    return measure_recall(view, vectors, depth=view.bundle.manifest.predictor.depth)


def measure_recall(view: View, vectors: Floats, *, depth: int) -> Recall:
    """Compare the view's search with an exact scan for query vectors [B, d]."""
    exact = view.retrieve(vectors, depth=depth, exact=True)
    _, rows = view.retrieve(vectors, depth=depth)
    shares = recall_per_query(queries=vectors, retrieved=rows, exact=exact, vectors_of=view.vectors)
    return Recall(
        queries=len(vectors), depth=depth, mean=float(np.mean(shares)), worst=float(np.min(shares))
    )


def recall_row(what: str, recall: Recall) -> Row:
    """Return the report's row for a recall."""
    return Row.bounded(
        what,
        recall.mean,
        least=RECALL,
        measured=f"{recall.mean:.4f} (worst query {recall.worst:.3f}; {recall.queries:,} queries)",
        figures=asdict(recall),
    )
