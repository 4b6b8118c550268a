"""`python -m loadtests.overload`: several times the load that a server can answer.

Measures saturation in a closed loop, then offers a multiple of it in an open loop: single queries;
requests of 64 queries; 500 idle connections beside; clients that disconnect before they are
answered. Writes overload.json and overload.md. The client runs on the server's cores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cyclopts import App

from loadtests.measure.environment import environment
from loadtests.measure.overload import Variant, measure_overload
from loadtests.measure.saturation import best, measure_saturation
from loadtests.queries import distinct, read_queries
from loadtests.results.goals import saturation_row
from loadtests.results.overload_rows import overload_rows
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from training.experiments.service_process import Server, running_server

SINGLE = Variant(name="single queries")
VARIANTS = (
    SINGLE,
    Variant(name="64 queries a request", queries=64),
    Variant(name="500 idle connections", idle=500),
    Variant(name="half of the clients leave after 20 ms", leaving=0.5),
)
WARM_UP_SHARE = 1 / 3  # of the seconds for which saturation is measured

app = App(name="loadtests.overload", help=__doc__)


@app.default
def overload(
    *,
    bundle: Path,
    out: Path,
    seconds: float = 60.0,
    variant_seconds: float = 20.0,
    saturation_seconds: float = 12.0,
    recovery_seconds: float = 5.0,
    factors: Sequence[float] = (4.0, 10.0),
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle's folder; its instance and label texts are the queries.
    out
        Folder for overload.json and overload.md.
    seconds
        How long each overload by single queries lasts.
    variant_seconds
        How long each other overload lasts.
    saturation_seconds
        How long saturation is measured, for each size of requests.
    recovery_seconds
        How long each overload is followed by less than the server can answer.
    factors
        Multiples of the saturation that are offered.
    seed
        Draws queries and arrivals.
    """
    console, rows = open_console(stderr=True), list[Row]()
    texts = distinct(read_queries(bundle), seed=seed)
    with running_server(bundle, options=["--no-access-log"]) as server:
        bench = _Bench(
            server=server,
            texts=texts,
            seed=seed,
            saturation_seconds=saturation_seconds,
            recovery_seconds=recovery_seconds,
        )
        warm_up_seconds = WARM_UP_SHARE * saturation_seconds
        measure_saturation(server, texts, seconds=warm_up_seconds)
        for variant in VARIANTS:
            console.print(f"{variant.name} ...")
            rows += bench.saturation_rows(variant)
            for factor in factors:
                console.print(f"{factor:g}x, {variant.name} ...")
                lasts = seconds if variant is SINGLE else variant_seconds
                rows += bench.overload_rows(variant, factor, seconds=lasts)
    Report(
        title="Overload",
        settings={"seconds": seconds, "variant_seconds": variant_seconds, "bundle": bundle.name},
        environment=environment(),
        rows=rows,
    ).publish(out, "overload")
    return 0


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """Measures one server; remembers the saturation by the number of queries in a request."""

    server: Server
    texts: Iterator[str]
    seed: int
    saturation_seconds: float
    recovery_seconds: float
    saturation: dict[int, float] = field(default_factory=dict)  # requests a second

    def saturation_rows(self, variant: Variant) -> list[Row]:
        """Measure the saturation of this size of requests, unless it is known."""
        queries = variant.queries
        if queries in self.saturation:
            return []
        levels = measure_saturation(
            self.server, self.texts, queries=queries, seconds=self.saturation_seconds
        )
        self.saturation[queries] = best(levels).per_second
        return [saturation_row(levels, what=f"saturation, {variant.name}", goal=None)]

    def overload_rows(self, variant: Variant, factor: float, *, seconds: float) -> list[Row]:
        """Measure one overload."""
        saturation = self.saturation[variant.queries]
        measured = measure_overload(
            self.server,
            self.texts,
            variant,
            saturation=saturation,
            factor=factor,
            seconds=seconds,
            recovery_seconds=self.recovery_seconds,
            seed=self.seed,
        )
        return overload_rows(variant, factor, measured, saturation=saturation)


if __name__ == "__main__":
    sys.exit(run(app))
