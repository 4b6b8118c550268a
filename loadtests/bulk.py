"""`python -m loadtests.bulk`: queries per second of `keymatch predict`, compared with HTTP.

In each round a closed loop saturates the server, with one and with several queries per request.
Then the server idles while the command answers a file of other queries on the same cores. Figures
are medians over the rounds. Writes bulk.json and bulk.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from loadtests.harness import Scenario, option, say
from loadtests.report import Row
from loadtests.traffic import best, measure_saturation
from service.child_server import running_server

GOAL = 3.0  # throughput relative to HTTP with one query per request

Rate = tuple[float, float]  # queries per second, milliseconds of CPU time per query


@dataclass(frozen=True, kw_only=True)
class Bulk(Scenario):
    """`keymatch predict` and an idle server on the same cores, in turn."""

    title = "Answers in bulk against HTTP"

    queries: int = option("Distinct queries that the command answers in each round.", 20_000)
    rounds: int = option("Rounds, each with every measurement.", 3)
    seconds: float = option("Seconds of saturation for each size of request.", 6.0)
    requests_of: tuple[int, ...] = option("Queries per request; the first must be 1.", (1, 16, 64))
    connections: tuple[int, ...] = option(
        "Numbers of connections that are tried in a closed loop; the best one counts.", (8, 16)
    )

    def rows(self) -> Iterator[Row]:
        """Measure all rounds, then yield a row per kind: its medians, and times the first."""
        measured = defaultdict[str, list[Rate]](list)
        texts = self.texts()
        _, start = (_command_seconds(self.bundle, ["start"]) for _ in range(2))  # first warms up
        with running_server(self.bundle) as server:
            for number in range(self.rounds):
                say(f"round {number + 1} of {self.rounds}")
                for size in self.requests_of:
                    levels = measure_saturation(
                        server,
                        texts,
                        queries=size,
                        seconds=self.seconds,
                        levels_of=self.connections,
                    )
                    level = best(levels)
                    rate = level.per_second * size, level.query_cpu_ms
                    measured[f"HTTP, {size} queries a request"].append(rate)
                taken = _command_seconds(self.bundle, list(islice(texts, self.queries)))
                seconds, cpu = taken[0] - start[0], taken[1] - start[1]
                rate = self.queries / max(0.001, seconds), 1000 * cpu / self.queries
                measured["in bulk"].append(rate)
        single = median(rate for rate, _ in next(iter(measured.values())))
        for what, rates in measured.items():
            per_second, cpu_ms = (median(values) for values in zip(*rates, strict=True))
            times = per_second / single
            yield Row.bounded(
                what,
                times,
                least=GOAL if what == "in bulk" else None,
                unit=" times the first",
                measured=f"{per_second:,.0f}/s, {times:.2f} times the first, {cpu_ms:.2f} ms"
                " of CPU time a query",
                figures={
                    "per_second": [rate for rate, _ in rates],
                    "cpu_ms": [cpu for _, cpu in rates],
                },
            )


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


if __name__ == "__main__":
    Bulk.command()
