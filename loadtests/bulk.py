"""`python -m loadtests.bulk`: queries per second of `keymatch predict`, compared with HTTP.

In each round a closed loop saturates the server, with one and with several queries per request.
Then the server idles while the command answers a file of other queries on the same cores. Figures
are medians over the rounds. Writes bulk.json and bulk.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from cyclopts import App

from loadtests.queries import distinct, read_queries
from loadtests.report import Report, Row
from loadtests.traffic import best, measure_saturation
from service.child_server import Server, running_server
from service.command_line import open_console, run

GOAL = 3.0  # throughput relative to HTTP with one query per request

app = App(name="loadtests.bulk", help=__doc__)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Queries per second, and milliseconds of CPU time per query."""

    per_second: float
    cpu_ms: float


@app.default
def bulk(
    *,
    bundle: Path,
    out: Path,
    queries: int = 20_000,
    rounds: int = 3,
    seconds: float = 6.0,
    requests_of: tuple[int, ...] = (1, 16, 64),
    connections: tuple[int, ...] = (8, 16),
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle that the server and the command use.
    out
        Folder for bulk.json and bulk.md.
    queries
        Distinct queries that the command answers in each round.
    rounds
        Rounds, each with every measurement.
    seconds
        Seconds of saturation for each size of request.
    requests_of
        Queries per request; the first must be 1.
    connections
        Numbers of connections that are tried in a closed loop; the best one counts.
    seed
        Draws the queries.
    """
    texts = distinct(read_queries(bundle), seed=seed)
    console = open_console(stderr=True)
    _, start = (_command_seconds(bundle, ["start"]) for _ in range(2))  # the first call warms up
    measured: dict[str, list[Rate]] = {}
    with running_server(bundle) as server:
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}")
            for size in requests_of:
                rate = _http(server, texts, size, seconds=seconds, connections=connections)
                measured.setdefault(f"HTTP, {size} queries a request", []).append(rate)
            seconds_taken, cpu = _command_seconds(bundle, list(islice(texts, queries)))
            for what, (before, cpu_before) in {
                "in bulk, its start included": (0.0, 0.0),
                "in bulk": start,
            }.items():
                taken = max(0.001, seconds_taken - before)
                cpu_ms = 1000 * (cpu - cpu_before) / queries
                measured.setdefault(what, []).append(
                    Rate(per_second=queries / taken, cpu_ms=cpu_ms)
                )
    Report(
        title="Answers in bulk against HTTP",
        settings={"queries": queries, "rounds": rounds, "start seconds": round(start[0], 2)},
        rows=_rows(measured),
    ).publish(out, "bulk")
    return 0


def _http(
    server: Server,
    texts: Iterator[str],
    size: int,
    *,
    seconds: float,
    connections: Sequence[int],
) -> Rate:
    level = best(
        measure_saturation(server, texts, queries=size, seconds=seconds, levels_of=connections)
    )
    return Rate(per_second=level.per_second * size, cpu_ms=level.query_cpu_ms)


def _command_seconds(bundle: Path, queries: Sequence[str]) -> tuple[float, float]:
    """Run `keymatch predict` on these queries; return its seconds and CPU seconds."""
    with TemporaryDirectory() as name:
        file, out = Path(name, "queries.txt"), Path(name, "answers.jsonl")
        file.write_text("".join(f"{query}\n" for query in queries))
        places = ("--bundle", bundle, "--input", file, "--out", out)
        begin = perf_counter()
        command = [sys.executable, "-m", "service", "predict", *map(str, places)]
        child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = perf_counter() - begin
        if child.returncode or len(out.read_bytes().splitlines()) != len(queries):
            raise RuntimeError(f"the command ended with {child.returncode}")
    return seconds, used.ru_utime + used.ru_stime


def _rows(measured: dict[str, list[Rate]]) -> list[Row]:
    single = median(rate.per_second for rate in next(iter(measured.values())))
    rows = []
    for what, rates in measured.items():
        per_second = median(rate.per_second for rate in rates)
        cpu = median(rate.cpu_ms for rate in rates)
        times = per_second / single
        goal = what == "in bulk"
        rows.append(
            Row(
                what=what,
                goal=f"{GOAL:g} times the first" if goal else "",
                measured=f"{per_second:,.0f}/s, {times:.2f} times the first, {cpu:.2f} ms"
                " of CPU time a query",
                met=times >= GOAL if goal else None,
                figures={
                    "per_second": [rate.per_second for rate in rates],
                    "cpu_ms": [rate.cpu_ms for rate in rates],
                },
            )
        )
    return rows


if __name__ == "__main__":
    sys.exit(run(app))
