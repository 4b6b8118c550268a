"""`python -m loadtests.parts.reranking`: what a second ranking adds to a query.

Serves a bundle with a second ranking twice: one server is sent `"rerank": false`.
The servers run at the same time and take turns: each is sent the same queries, one a request, over
one connection; the order of the servers alternates. Writes reranking.json and reranking.md.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from cyclopts import App

from loadtests.measure.environment import environment
from loadtests.queries import distinct, read_queries
from loadtests.results.result_table import Report
from loadtests.results.turns import Side, rows_of_turns, take_turns
from service.command_line import run
from service.core.bundle import manifest
from service.core.errors import InvalidInput
from training.experiments.service_process import running_server

ADDED_MS = 1.0  # at the median, that a second ranking may add

app = App(name="loadtests.parts.reranking", help=__doc__)


@app.default
def reranking(
    *, bundle: Path, out: Path, unseen: Path | None = None, rounds: int = 10, queries: int = 300
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        A bundle with a second ranking.
    out
        Folder for reranking.json and reranking.md.
    unseen
        A file of queries to send, such as a data set's tst.json.gz. Default: those of the bundle.
    rounds
        Rounds, in each of which both servers are measured.
    queries
        Queries of a round, each distinct.
    """
    second = manifest.read(bundle).reranker
    if second is None:
        raise InvalidInput(f"bundle {bundle} has no second ranking")
    fields = {
        "the memory's ranking": {"rerank": False},
        f"{second.trees} trees over {second.candidates} candidates": {"rerank": True},
    }
    with ExitStack() as running:
        sides = {
            name: Side(
                server=running.enter_context(running_server(bundle, options=["--no-access-log"])),
                fields=of_request,
            )
            for name, of_request in fields.items()
        }
        texts = distinct(read_queries(bundle, unseen), seed=0)
        take_turns(sides, lambda: list(islice(texts, queries)), rounds)
    Report(
        title="What a second ranking adds to a query",
        settings={"bundle": bundle.name, "rounds": rounds, "queries": queries},
        environment=environment(),
        rows=rows_of_turns(sides, goal_ms=ADDED_MS),
    ).publish(out, "reranking")
    return 0


if __name__ == "__main__":
    sys.exit(run(app))
