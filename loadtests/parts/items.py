"""`python -m loadtests.parts.items`: what items add to a query's latency and processor time.

Serves a bundle without items, and the same bundle with each number of items and OAK's fusion. The
servers run at the same time and take turns: each is sent the same queries, one a request, over one
connection; the order of the servers alternates. Items are texts of the bundle with their keys.
Writes items.json and items.md. Bundles with items are kept in the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import App, Parameter

from loadtests.clients.connection import predict
from loadtests.clients.one_connection import one_after_the_other
from loadtests.measure.environment import environment
from loadtests.measure.item_bundles import bundle_with_items
from loadtests.queries import distinct, read_queries
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from training.experiments.service_process import Server, running_server

ADDED_MS = 0.5  # at the median, that items may add

Numbers = Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())]

app = App(name="loadtests.parts.items", help=__doc__)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One server's latencies in seconds, and processor seconds a request, round by round."""

    server: Server
    latencies: list[list[float]] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def medians(self) -> Sequence[float]:
        """The median latency of each round, milliseconds."""
        return [float(np.median(seconds)) * 1000 for seconds in self.latencies]


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
        for turn in range(-1, rounds):  # the first round warms up
            asked = [predict(text) for text in islice(texts, queries)]
            _take_turns(sides, asked, turn=turn, rounds=rounds)
    Report(
        title="What items add to a query",
        settings={"bundle": bundle.name, "rounds": rounds, "queries": queries},
        environment=environment(),
        rows=_rows(sides),
    ).publish(out, "items")
    return 0


def _take_turns(
    sides: Mapping[str, Side], asked: Sequence[bytes], *, turn: int, rounds: int
) -> None:
    """Send the same requests to each server; those of round -1 are not counted."""
    open_console(stderr=True).print(f"round {turn + 1} of {rounds}")
    for name in sides if turn % 2 else reversed(list(sides)):
        seconds, processor = one_after_the_other(sides[name].server, asked)
        if turn >= 0:
            sides[name].latencies.append(seconds)
            sides[name].processor.append(processor)


def _rows(sides: Mapping[str, Side]) -> list[Row]:
    plain, *with_items = sides
    rows = []
    for name, side in sides.items():
        p50, p99 = np.percentile(np.concatenate(side.latencies), [50, 99]) * 1000
        processor = float(np.median(side.processor)) * 1000
        rows.append(
            Row(
                what=f"{name}: latency, processor time a request",
                goal="",
                measured=f"p50 {p50:.2f}, p99 {p99:.2f} ms; {processor:.2f} ms",
                figures={
                    "p50_ms": float(p50),
                    "p99_ms": float(p99),
                    "medians_ms": side.medians(),
                    "processor_ms": [seconds * 1000 for seconds in side.processor],
                },
            )
        )
    return rows + [_added(name, sides[name], sides[plain]) for name in with_items]


def _added(name: str, side: Side, plain: Side) -> Row:
    """What a side adds to the one without items: the median of the rounds' differences."""
    latency = float(np.median(np.subtract(side.medians(), plain.medians())))
    processor = float(np.median(np.subtract(side.processor, plain.processor))) * 1000
    return Row(
        what=f"{name}: added at the median, in processor time",
        goal=f"{ADDED_MS} ms",
        measured=f"{latency:.2f} ms, {processor:.2f} ms",
        met=latency <= ADDED_MS,
        figures={"added_ms": latency, "added_processor_ms": processor},
    )


if __name__ == "__main__":
    sys.exit(run(app))
