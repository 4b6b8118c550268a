"""What must hold beside an attack and after it, judged by the quiet round before it."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.attacks.rounds import Round
from loadtests.measure.latency_summary import Summary
from loadtests.results.result_table import Row

RATIO = 5.0  # p99 beside an attack over that of the quiet round
PROBE_SECONDS = 0.1
REFUSED = ("429", "503")  # what a client may be told while the attack lasts
FIRST_RATIO = 5.0  # of the first request after the attack over the quiet median
FIRST_SECONDS = 0.02  # which that request may always take


def rows_of(name: str, quiet: Round, beside: Round) -> Iterator[Row]:
    """Judge the round beside the attack of this name."""
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
        figures={"quiet": usual.as_document(), "attacked": attacked.as_document(), **failures},
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
