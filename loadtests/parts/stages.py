"""`python -m loadtests.parts.stages`: what each stage of a query costs, without the service.

The predictor answers one query after the other in this thread, as a thread of the service does.
Each stage's processor time is measured, and that of the first queries, which find nothing in the
processor's caches. Writes stages.json and stages.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import thread_time
from typing import TypeVar

import numpy as np
from cyclopts import App

from loadtests.measure.bare_predictor import BarePredictor
from loadtests.measure.environment import environment
from loadtests.queries import distinct, read_queries
from loadtests.results.result_table import Report, Row
from service.command_line import run
from service.core.prediction.ranking import CompiledRanker, open_ranker
from service.core.types import Role

STAGES = ("tokenize", "encode", "retrieve", "vote", "texts")
FIRST_QUERIES = 10
VOTE_AND_TEXTS_MS = 0.15

app = App(name="loadtests.parts.stages", help=__doc__)

Value = TypeVar("Value")
Milliseconds = dict[str, float]  # by stage


@app.default
def stages(
    *,
    bundle: Path,
    out: Path,
    queries: int = 2_000,
    unseen: Path | None = None,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle that answers, with the inference settings that it stores.
    out
        Folder for stages.json and stages.md.
    queries
        How many distinct queries are answered.
    unseen
        File of queries that the bundle does not hold, to use instead of its own texts.
    seed
        Draws the queries.
    """
    texts = list(islice(distinct(read_queries(bundle, unseen), seed=seed), queries))
    bare = BarePredictor.open(bundle)
    measured = [query_milliseconds(bare, text) for text in texts]
    compiled = isinstance(open_ranker(), CompiledRanker)
    Report(
        title="Processor time of a query by stage, milliseconds",
        settings={
            "bundle": bundle.name,
            "queries": len(texts),
            "ef": bare.view.bundle.manifest.index.ef,
            "depth": bare.options.depth,
            "votes counted by": "compiled code" if compiled else "numpy",
        },
        environment=environment(),
        rows=list(_rows(measured)),
    ).publish(out, "stages")
    return 0


def query_milliseconds(bare: BarePredictor, query: str) -> Milliseconds:
    """Answer a query stage by stage; returns the processor time of this thread."""
    predictor, encoder, view = bare.predictor, bare.encoder, bare.view
    tokens, tokenize = _timed(lambda: encoder.tokenize([query], role=Role.QUERY))
    vectors, encode = _timed(lambda: encoder.embed(tokens))
    retrieved, retrieve = _timed(lambda: predictor.retrieve(view, vectors, bare.options))
    rankings, vote = _timed(lambda: list(predictor.vote(view, retrieved, bare.options)))
    _, texts = _timed(lambda: predictor.keywords(view, rankings[0], bare.options))
    return dict(zip(STAGES, (tokenize, encode, retrieve, vote, texts), strict=True))


def _timed(work: Callable[[], Value]) -> tuple[Value, float]:
    start = thread_time()
    value = work()
    return value, (thread_time() - start) * 1000


def _rows(measured: Sequence[Milliseconds]) -> Iterator[Row]:
    first, rest = measured[:FIRST_QUERIES], measured[FIRST_QUERIES:]
    for stage in STAGES:
        yield _row(stage, *([query[stage] for query in part] for part in (rest, first)))
    yield _row(
        "vote and texts",
        *([query["vote"] + query["texts"] for query in part] for part in (rest, first)),
        goal=VOTE_AND_TEXTS_MS,
    )
    yield _row("all stages", *([sum(query.values()) for query in part] for part in (rest, first)))


def _row(
    what: str, rest: Sequence[float], first: Sequence[float], *, goal: float | None = None
) -> Row:
    p50, p99 = np.percentile(rest, [50, 99])
    return Row(
        what=what,
        goal="" if goal is None else f"p50 {goal} ms",
        measured=(
            f"p50 {p50:.3f}, p99 {p99:.3f}; the first {len(first)}: median {np.median(first):.3f},"
            f" slowest {max(first):.3f}"
        ),
        met=None if goal is None else bool(p50 <= goal),
        figures={
            "p50_ms": float(p50),
            "p99_ms": float(p99),
            "mean_ms": float(np.mean(rest)),
            "first_ms": [float(value) for value in first],
        },
    )


if __name__ == "__main__":
    sys.exit(run(app))
