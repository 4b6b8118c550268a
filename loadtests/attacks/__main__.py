"""`python -m loadtests.attacks`: what a normal client notices while another one attacks.

A client sends predictions in an open loop, first alone, then beside each attack; each round has a
quiet one right before it. Reports the 99th percentile beside the attack and that of the quiet
round, answers other than 200, the slowest probe, the most memory beside the budget of memory, how
long the first request after the attack took, answers of 500 to anyone, and logged defects. The
attacker takes processor time of the same machine. Writes attacks.json and attacks.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from cyclopts import App

from loadtests.attacks.attackers import ATTACKS
from loadtests.attacks.judgement import rows_of
from loadtests.attacks.rounds import measure_round
from loadtests.measure.environment import environment
from loadtests.measure.traffic import Load, warm_up
from loadtests.queries import distinct, read_queries
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from service.core.bundle import manifest
from service.core.errors import InvalidInput
from training.commands.options import MANY
from training.experiments.service_process import running_server

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
    facts = manifest.read(bundle)  # before minutes of work: it may be missing
    unknown = set(only) - set(ATTACKS)
    if unknown:
        known = ", ".join(ATTACKS)
        raise InvalidInput(f"no attack is named {', '.join(sorted(unknown))}; there are: {known}")
    console = open_console(stderr=True)
    texts = distinct(read_queries(bundle), seed=seed)
    load = Load(rate=rate, label_rate=0, seconds=seconds, seed=seed)
    rows: list[Row] = []
    with (
        TemporaryDirectory(prefix="keymatch-snapshots-") as snapshots,
        running_server(bundle, options=["--no-access-log", "--bundles", snapshots]) as server,
    ):
        warm_up(server, texts, seconds=3.0)
        for turn, name in enumerate(only or ATTACKS):
            console.print(f"{name} ...")
            quiet = measure_round(server, facts, texts, load, turn=2 * turn)
            beside = measure_round(server, facts, texts, load, attack=name, turn=2 * turn + 1)
            rows += rows_of(name, quiet, beside)
        report = Report(
            title="Attacks",
            settings={"rate": rate, "seconds": seconds, "bundle": bundle.name},
            environment=environment(),
            rows=rows,
        )
        report.publish(out, "attacks")  # before the server is stopped, which may fail
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(run(app))
