"""`python -m loadtests.attacks`: how much an attacking client disturbs a normal one.

A client sends predictions in an open loop, first alone, then during each attack. Reports the 99th
percentile of both rounds, answers other than 200, the slowest probe, and the peak memory next to
its budget. Also reports the time of the first request after the attack, answers of 500 to anyone,
and logged defects. The attacker uses the same cores. Writes attacks.json and attacks.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from cyclopts import App

from loadtests.attacks.attackers import ATTACKS
from loadtests.attacks.rounds import Round, measure_round
from loadtests.queries import distinct, read_queries
from loadtests.report import Report, Row
from loadtests.traffic import Load, Summary, warm_up
from service.child_server import running_server
from service.command_line import open_console, run
from service.core.bundle import manifest
from service.core.errors import InvalidInput
from training.commands.options import MANY

RATIO = 5.0  # p99 during an attack, relative to the quiet round
PROBE_SECONDS = 0.1
REFUSED = ("429", "503")  # allowed answers to the normal client during an attack
FIRST_RATIO = 5.0  # time of the first request after the attack, relative to the quiet median
FIRST_SECONDS = 0.02  # always allowed for the first request

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
    """Measure and report; the status is 1 if a goal is missed.

    Parameters
    ----------
    bundle
        The bundle's folder; its texts are the queries.
    out
        Folder for attacks.json and attacks.md.
    rate
        Predictions per second of the normal client.
    seconds
        Duration of each round.
    only
        Names of attacks. Default: all.
    seed
        Draws queries and arrivals.
    """
    facts = manifest.read(bundle)  # fail now, not after minutes of work, if it is missing
    unknown = set(only) - set(ATTACKS)
    if unknown:
        known = ", ".join(ATTACKS)
        raise InvalidInput(f"no attack is named {', '.join(sorted(unknown))}; there are: {known}")
    console = open_console(stderr=True)
    texts = distinct(read_queries(bundle), seed=seed)
    load = Load(rate=rate, seconds=seconds, seed=seed)
    rows: list[Row] = []
    with (
        TemporaryDirectory(prefix="keymatch-snapshots-") as snapshots,
        running_server(bundle, options=["--no-access-log", "--bundles", snapshots]) as server,
    ):
        warm_up(server, texts)
        for turn, name in enumerate(only or ATTACKS):
            console.print(f"{name} ...")
            quiet = measure_round(server, facts, texts, load, turn=2 * turn)
            beside = measure_round(server, facts, texts, load, attack=name, turn=2 * turn + 1)
            rows += rows_of(name, quiet, beside)
        report = Report(
            title="Attacks",
            settings={"rate": rate, "seconds": seconds, "bundle": bundle.name},
            rows=rows,
        )
        report.publish(out, "attacks")  # publish before the server is stopped, which may fail
    return report.status


def rows_of(name: str, quiet: Round, beside: Round) -> Iterator[Row]:
    """Judge the round during the attack named `name`."""
    yield _latency(name, quiet, beside)
    yield _probes(name, beside)
    yield _memory(name, quiet, beside)
    yield _afterwards(name, quiet, beside)


def _latency(name: str, quiet: Round, beside: Round) -> Row:
    usual, attacked = Summary.of(quiet.outcome.latencies), Summary.of(beside.outcome.latencies)
    failures = beside.outcome.failures
    wrong = {status: count for status, count in failures.items() if status not in REFUSED}
    return Row(
        what=f"{name}: a normal client's p99",
        goal=f"<= {RATIO:g}x, no errors",
        measured=f"{attacked.p99 / usual.p99:.1f}x: {usual.p99:.1f} to {attacked.p99:.1f} ms"
        f" (p50 {usual.p50:.1f} to {attacked.p50:.1f}); not answered: {failures or 'none'}",
        met=attacked.p99 <= RATIO * usual.p99 and not wrong,
        figures={"quiet": usual, "attacked": attacked, **failures},
    )


def _probes(name: str, beside: Round) -> Row:
    slowest = max(beside.health.seconds, default=float("inf"))
    return Row(
        what=f"{name}: slowest probe",
        goal=f"<= {1e3 * PROBE_SECONDS:g} ms",
        measured=f"{1e3 * slowest:.0f} ms; failed: {', '.join(beside.health.failures) or 'none'}",
        met=slowest <= PROBE_SECONDS and not beside.health.failures,
        figures={"probe": slowest},
    )


def _memory(name: str, quiet: Round, beside: Round) -> Row:
    return Row(
        what=f"{name}: most memory of all processes",
        goal=f"<= {beside.budget:.0f} MB",
        measured=f"{quiet.most_resident:.0f} to {beside.most_resident:.0f} MB",
        met=beside.most_resident <= beside.budget,
        figures={"resident": beside.most_resident, "budget": beside.budget},
    )


def _afterwards(name: str, quiet: Round, beside: Round) -> Row:
    usual = Summary.of(quiet.outcome.latencies).p50 / 1_000
    allowed = max(FIRST_SECONDS, FIRST_RATIO * usual)
    first = "answered" if beside.first_status == 200 else f"answered with {beside.first_status}"
    return Row(
        what=f"{name}: first request afterwards; answers of 500, and logged defects",
        goal=f"<= {1e3 * allowed:.0f} ms; none",
        measured=f"{first} in {1e3 * beside.first_after:.1f} ms; {beside.internal_errors},"
        f" {beside.defects}",
        met=beside.first_status == 200
        and beside.first_after <= allowed
        and not beside.internal_errors
        and not beside.defects,
        figures={
            "first_after": beside.first_after,
            "internal_errors": beside.internal_errors,
            "defects": beside.defects,
        },
    )


if __name__ == "__main__":
    sys.exit(run(app))
