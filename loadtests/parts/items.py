"""`python -m loadtests.parts.items`: what items add to a query's latency and processor time.

Serves a bundle without items, and the same bundle with each number of items and OAK's fusion. The
servers run at the same time and take turns: each is sent the same queries, one a request, over one
connection; the order of the servers alternates. Items are texts of the bundle with their keys.
Writes items.json and items.md. Bundles with items are kept in the folder.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from loadtests.measure.environment import environment
from loadtests.measure.item_bundles import bundle_with_items
from loadtests.queries import distinct, read_queries
from loadtests.results.result_table import Report
from loadtests.results.turns import Side, rows_of_turns, take_turns
from service.command_line import run
from training.experiments.service_process import running_server

ADDED_MS = 0.5  # at the median, that items may add

Numbers = Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())]

app = App(name="loadtests.parts.items", help=__doc__)


@app.default
def items(
    *,
    bundle: Path,
    out: Path,
    sizes: Numbers = (600, 100_000),
    rounds: int = 10,
    queries: int = 300,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        A bundle without items.
    out
        Folder for items.json and items.md, and for the bundles with items.
    sizes
        Numbers of items.
    rounds
        Rounds, in each of which every server is measured.
    queries
        Queries of a round, each distinct.
    seed
        Draws items and queries.
    """
    folders = {"without items": bundle} | {
        f"{size:,} items": bundle_with_items(
            bundle, out / f"{bundle.name}-{size}-items-{seed}", items=size, seed=seed
        )
        for size in sizes
    }
    with ExitStack() as running:
        sides = {
            name: Side(
                server=running.enter_context(running_server(folder, options=["--no-access-log"]))
            )
            for name, folder in folders.items()
        }
        texts = distinct(read_queries(bundle), seed=seed)
        take_turns(sides, lambda: list(islice(texts, queries)), rounds)
    Report(
        title="What items add to a query",
        settings={"bundle": bundle.name, "rounds": rounds, "queries": queries},
        environment=environment(),
        rows=rows_of_turns(sides, goal_ms=ADDED_MS),
    ).publish(out, "items")
    return 0


if __name__ == "__main__":
    sys.exit(run(app))
