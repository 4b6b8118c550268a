"""Servers that take turns with the same queries, and what each adds to the first of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtests.clients.connection import post
from loadtests.clients.one_connection import one_after_the_other
from loadtests.results.result_table import Row
from service.command_line import open_console
from training.experiments.service_process import Server


@dataclass(frozen=True, kw_only=True)
class Side:
    """One server, and what its requests have besides the query.

    Latencies are in seconds, `processor` in processor seconds a request, both round by round.
    """

    server: Server
    fields: Mapping[str, object] = field(default_factory=dict)
    latencies: list[list[float]] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def requests(self, queries: Sequence[str]) -> list[bytes]:
        """A /predict request for each query."""
        return [post("/predict", {"queries": [query], **self.fields}) for query in queries]

    def medians(self) -> Sequence[float]:
        """The median latency of each round, milliseconds."""
        return [float(np.median(seconds)) * 1000 for seconds in self.latencies]


def take_turns(
    sides: Mapping[str, Side], next_queries: Callable[[], Sequence[str]], rounds: int
) -> None:
    """Send each server the queries of each round; the order of the servers alternates.

    One more round before the others warms up and is not counted.
    """
    for turn in range(-1, rounds):
        queries = next_queries()
        open_console(stderr=True).print(f"round {turn + 1} of {rounds}")
        for name in sides if turn % 2 else reversed(list(sides)):
            seconds, processor = one_after_the_other(
                sides[name].server, sides[name].requests(queries)
            )
            if turn >= 0:
                sides[name].latencies.append(seconds)
                sides[name].processor.append(processor)


def rows_of_turns(sides: Mapping[str, Side], *, goal_ms: float) -> list[Row]:
    """The figures of each side, and what each of the others adds to the first."""
    first, *others = sides
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
    return rows + [_added(name, sides[name], sides[first], goal_ms) for name in others]


def _added(name: str, side: Side, first: Side, goal_ms: float) -> Row:
    """What a side adds to the first one: the median of the rounds' differences."""
    latency = float(np.median(np.subtract(side.medians(), first.medians())))
    processor = float(np.median(np.subtract(side.processor, first.processor))) * 1000
    return Row(
        what=f"{name}: added at the median, in processor time",
        goal=f"{goal_ms:g} ms",
        measured=f"{latency:.2f} ms, {processor:.2f} ms",
        met=latency <= goal_ms,
        figures={"added_ms": latency, "added_processor_ms": processor},
    )
