"""`python -m loadtests.attacks`: how much an attacking client disturbs a normal one.

A client sends predictions in an open loop, first alone, then during each attack. Reports the 99th
percentile of both rounds, answers other than 200, the slowest probe, and the peak memory next to
its budget. Also reports the time of the first request after the attack, answers of 500 to anyone,
and logged defects. The attacker uses the same cores. Writes attacks.json and attacks.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Annotated

from loadtests.attacks.attackers import ATTACKS
from loadtests.attacks.rounds import Round, disturbed_row, measure_round
from loadtests.harness import Scenario, command, said, say
from loadtests.report import Row
from loadtests.traffic import Load, Summary, warm_up
from service.command_line import run
from service.core.bundle import manifest
from service.core.errors import InvalidInput
from training.commands.options import MANY

RATIO = 5.0  # p99 during an attack, relative to the quiet round
PROBE_SECONDS = 0.1
REFUSED = ("429", "503")  # allowed answers to the normal client during an attack
FIRST_RATIO = 5.0  # time of the first request after the attack, relative to the quiet median
FIRST_SECONDS = 0.02  # always allowed for the first request


@dataclass(frozen=True, kw_only=True)
class Attacks(Scenario):
    """One server that is attacked in all ways, one after another."""

    title = "Attacks"
    judged = True

    rate: Annotated[float, said("Predictions per second of the normal client.")] = 40.0
    seconds: Annotated[float, said("Duration of each round.")] = 10.0
    only: Annotated[tuple[str, ...], said("Names of attacks. Default: all.", MANY)] = ()

    def rows(self) -> Iterator[Row]:
        """Measure a quiet round and one during the attack, for each attack."""
        unknown = ", ".join(sorted(set(self.only) - set(ATTACKS)))
        if unknown:
            raise InvalidInput(f"no attack is named {unknown}; there are: {', '.join(ATTACKS)}")
        facts, texts = manifest.read(self.bundle), self.texts()
        load = Load(rate=self.rate, seconds=self.seconds, seed=self.seed)
        with (
            TemporaryDirectory(prefix="keymatch-snapshots-") as snapshots,
            self.server("--bundles", snapshots) as server,
        ):
            warm_up(server, texts)
            for turn, name in enumerate(self.only or ATTACKS):
                say(f"{name} ...")
                quiet = measure_round(server, facts, texts, load, turn=2 * turn)
                beside = measure_round(server, facts, texts, load, attack=name, turn=2 * turn + 1)
                yield from rows_of(name, quiet, beside)


def rows_of(name: str, quiet: Round, beside: Round) -> Iterator[Row]:
    """Judge the round during the attack named `name`."""
    what, rounds = f"{name}: a normal client's p99", (quiet.outcome, beside.outcome)
    yield disturbed_row(what, *rounds, ratio=RATIO, goal="no errors", allowed=REFUSED)
    slowest, failures = max(beside.health.seconds, default=float("inf")), beside.health.failures
    yield Row.bounded(
        f"{name}: slowest probe",
        1e3 * slowest,
        most=1e3 * PROBE_SECONDS,
        unit=" ms",
        measured=f"{1e3 * slowest:.0f} ms; failed: {', '.join(failures) or 'none'}",
        sound=not failures,
        figures={"probe": slowest},
    )
    yield Row.bounded(
        f"{name}: most memory of all processes",
        beside.most_resident,
        most=beside.budget,
        unit=" MB",
        measured=f"{quiet.most_resident:.0f} to {beside.most_resident:.0f} MB",
        figures={"resident": beside.most_resident, "budget": beside.budget},
    )
    first = "answered" if beside.first_status == 200 else f"answered with {beside.first_status}"
    wrong = {"internal_errors": beside.internal_errors, "defects": beside.defects}
    yield Row.bounded(
        f"{name}: first request afterwards; answers of 500, and logged defects",
        1e3 * beside.first_after,
        most=max(1e3 * FIRST_SECONDS, FIRST_RATIO * Summary.of(quiet.outcome.latencies).p50),
        unit=" ms; none",
        measured=f"{first} in {1e3 * beside.first_after:.1f} ms; {beside.internal_errors},"
        f" {beside.defects}",
        sound=beside.first_status == 200 and not any(wrong.values()),
        figures={"first_after": beside.first_after, **wrong},
    )


app = command(Attacks)

if __name__ == "__main__":
    sys.exit(run(app))
