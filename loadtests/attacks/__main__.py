"""`python -m loadtests.attacks`: what a normal client notices while another one attacks.

A client sends predictions in an open loop, first alone, then beside each attack; each round has a
quiet one right before it. Reports the 99th percentile beside the attack and that of the quiet
round, answers other than 200, the slowest probe, the most memory, and how long the first request
after the attack took. The attacker takes processor time of the same machine. Writes attacks.json
and attacks.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import App

from loadtests.attacks.attackers import ATTACKS
from loadtests.attacks.rounds import Round, measure_round
from loadtests.measure.environment import environment
from loadtests.measure.latency_summary import Summary
from loadtests.measure.traffic import Load, warm_up
from loadtests.queries import distinct, read_queries
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from service.core.bundle import manifest
from service.core.errors import InvalidInput
from training.commands.options import MANY
from training.experiments.service_process import running_server

RATIO = 5.0  # p99 beside an attack over that of the quiet round
PROBE_SECONDS = 0.1
REFUSED = ("429", "503")  # what a client may be told while the attack lasts

app = App(name="loadtests.attacks", help=__doc__)


@app.default
def attacks(
    *,
    bundle: Path,
    out: Path,
    rate: float = 40.0,
    seconds: float = 10.0,
    only: Annotated[tuple[str, ...], MANY] = (),
    seed: int = 0,
) -> int:
    """Measure and report; the status is 1 where a goal is missed.

    Parameters
    ----------
    bundle
        The bundle's folder; its texts are the queries.
    out
        Folder for attacks.json and attacks.md.
    rate
        Predictions a second of the normal client.
    seconds
        Duration of each round.
    only
        Names of attacks; by default all.
    seed
        Draws queries and arrivals.
    """
    manifest.read(bundle)  # before minutes of work: it may be missing
    unknown = set(only) - set(ATTACKS)
    if unknown:
        known = ", ".join(ATTACKS)
        raise InvalidInput(f"no attack is named {', '.join(sorted(unknown))}; there are: {known}")
    console = open_console(stderr=True)
    texts = distinct(read_queries(bundle), seed=seed)
    load = Load(rate=rate, label_rate=0, seconds=seconds, seed=seed)
    rows: list[Row] = []
    with running_server(bundle, options=["--no-access-log"]) as server:
        warm_up(server, texts, seconds=3.0)
        for turn, name in enumerate(only or ATTACKS):
            console.print(f"{name} ...")
            quiet = measure_round(server, texts, load, turn=2 * turn)
            beside = measure_round(server, texts, load, attack=name, turn=2 * turn + 1)
            rows += rows_of(name, quiet, beside)
    Report(
        title="Attacks",
        settings={"rate": rate, "seconds": seconds, "bundle": bundle.name},
        environment=environment(),
        rows=rows,
    ).publish(out, "attacks")
    return 0 if all(row.met is not False for row in rows) else 1


def rows_of(name: str, quiet: Round, beside: Round) -> Iterator[Row]:
    """Judge the round beside one attack by the quiet one before it."""
    usual, attacked = Summary.of(quiet.outcome.latencies), Summary.of(beside.outcome.latencies)
    failures = beside.outcome.failures
    wrong = {status: count for status, count in failures.items() if status not in REFUSED}
    yield Row(
        what=f"{name}: a normal client's p99",
        goal=f"<= {RATIO:g}x, no errors",
        measured=f"{attacked.p99 / usual.p99:.1f}x: {usual.p99:.1f} to {attacked.p99:.1f} ms"
        f" (p50 {usual.p50:.1f} to {attacked.p50:.1f}); not answered: {failures or 'none'}",
        met=attacked.p99 <= RATIO * usual.p99 and not wrong,
        figures={"quiet": usual.as_document(), "attacked": attacked.as_document(), **failures},
    )
    slowest = max(beside.health.seconds, default=float("inf"))
    yield Row(
        what=f"{name}: slowest probe; most memory; first request afterwards",
        goal=f"<= {1e3 * PROBE_SECONDS:g} ms",
        measured=f"{1e3 * slowest:.0f} ms; {quiet.most_resident:.0f} to"
        f" {beside.most_resident:.0f} MB; {1e3 * beside.first_after:.1f} ms",
        met=slowest <= PROBE_SECONDS and not beside.health.failures,
        figures={
            "probe": slowest,
            "resident": beside.most_resident,
            "first_after": beside.first_after,
        },
    )


if __name__ == "__main__":
    sys.exit(run(app))
