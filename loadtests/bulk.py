"""`python -m loadtests.bulk`: answers of `python -m service predict` a second, against HTTP.

In each round the server is saturated by a closed loop, with one query a request and with many, and
then answers nothing while the command answers a file of other queries, on the same cores. Figures
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

from loadtests.measure.environment import environment
from loadtests.measure.saturation import best, measure_saturation
from loadtests.queries import distinct, read_queries
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from training.experiments.service_process import Server, running_server

GOAL = 3.0  # times HTTP with one query a request

app = App(name="loadtests.bulk", help=__doc__)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Queries a second, and milliseconds of processor time a query."""

    per_second: float
    processor_ms: float


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
        The bundle that is served and that answers in bulk.
    out
        Folder for bulk.json and bulk.md.
    queries
        Distinct queries that the command answers in a round.
    rounds
        Rounds, each with every measurement.
    seconds
        Of saturating the server, for each size of request.
    requests_of
        Queries a request, 1 first.
    connections
        Connections that are tried in a closed loop; the best number counts.
    seed
        Draws the queries.
    """
    texts = distinct(read_queries(bundle), seed=seed)
    console, start = open_console(stderr=True), _start_seconds(bundle)
    measured: dict[str, list[Rate]] = {}
    with running_server(bundle) as server:
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}")
            for size in requests_of:
                rate = _http(server, texts, size, seconds=seconds, connections=connections)
                measured.setdefault(f"HTTP, {size} queries a request", []).append(rate)
            answered = _bulk(bundle, list(islice(texts, queries)))
            measured.setdefault("in bulk, its start included", []).append(answered)
            measured.setdefault("in bulk", []).append(_without(answered, start, queries))
    Report(
        title="Answers in bulk against HTTP",
        settings={"queries": queries, "rounds": rounds, "start seconds": round(start[0], 2)},
        environment=environment(),
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
    return Rate(per_second=level.per_second * size, processor_ms=level.query_processor_ms)


def _bulk(bundle: Path, queries: Sequence[str]) -> Rate:
    seconds, processor = _command_seconds(bundle, queries)
    count = len(queries)
    return Rate(per_second=count / seconds, processor_ms=1000 * processor / count)


def _start_seconds(bundle: Path) -> tuple[float, float]:
    """Seconds and processor seconds of a run that answers one query; the second of two runs."""
    return [_command_seconds(bundle, ["start"]) for _ in range(2)][-1]


def _without(rate: Rate, start: tuple[float, float], queries: int) -> Rate:
    """The rate without the time that the command takes to open the bundle."""
    seconds = max(0.001, queries / rate.per_second - start[0])
    return Rate(
        per_second=queries / seconds,
        processor_ms=rate.processor_ms - 1000 * start[1] / queries,
    )


def _command_seconds(bundle: Path, queries: Sequence[str]) -> tuple[float, float]:
    """Seconds and processor seconds of `python -m service predict` over these queries."""
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
        processor = median(rate.processor_ms for rate in rates)
        times = per_second / single
        goal = what == "in bulk"
        rows.append(
            Row(
                what=what,
                goal=f"{GOAL:g} times the first" if goal else "",
                measured=f"{per_second:,.0f}/s, {times:.2f} times the first, {processor:.2f} ms"
                " of processor time a query",
                met=times >= GOAL if goal else None,
                figures={
                    "per_second": [rate.per_second for rate in rates],
                    "processor_ms": [rate.processor_ms for rate in rates],
                },
            )
        )
    return rows


if __name__ == "__main__":
    sys.exit(run(app))
