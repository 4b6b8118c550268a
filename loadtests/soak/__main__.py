"""`python -m loadtests.soak`: half an hour of mixed load; reports losses, leaks and refusals.

Predictions, labels, deletions, clicks, negative and unlearned pairs, rules, probes and scrapes
continue while blocks of live rows are sealed and merged, a snapshot is written and served, and the
process is killed and restarted.
Reports acknowledged writes that are missing, answers other than 200, and the growth of memory and
open files after the restart and its warm-up. Writes soak.json (with all samples) and soak.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

from loadtests.harness import Scenario, command, said, say
from loadtests.queries import read_queries
from loadtests.report import Row
from loadtests.soak.course import BEFORE, Course, Rates, run_course
from service.command_line import run
from service.core.errors import CommandFailed

DRIFT = 0.02  # allowed relative growth of the memory
JUDGED_SAMPLES = 8  # at least, so that each compared window has two samples
BROKEN = ("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "RequestFailed")


@dataclass(frozen=True, kw_only=True)
class Soak(Scenario):
    """One service over one label log, before and after a kill."""

    title = "Soak"
    judged = True

    minutes: Annotated[
        float,
        said("Duration in minutes, without the time for the snapshot and the restart."),
    ] = 30.0
    reads: Annotated[float, said("Predictions per second.")] = 40.0
    labels: Annotated[float, said("Requests per second, with four labels each.")] = 4.0
    clicks: Annotated[
        float,
        said("Clicks per second; some are negative pairs, and some are unlearned."),
    ] = 10.0
    rules: Annotated[float, said("Rules put or deleted per second.")] = 1.0

    def rows(self) -> Iterator[Row]:
        """Run the whole course, then judge it."""
        rates = Rates(reads=self.reads, labels=self.labels, clicks=self.clicks, rules=self.rules)
        say(f"{self.minutes:g} minutes of mixed load ...")
        texts, seconds = read_queries(self.bundle), 60 * self.minutes
        with TemporaryDirectory(prefix="keymatch-soak-") as folder:
            course = run_course(self.bundle, Path(folder), texts, seconds=seconds, rates=rates)
        yield from rows_of(course, seconds=seconds)


def rows_of(course: Course, *, seconds: float) -> Iterator[Row]:
    """Judge a course; raises `CommandFailed` if it was too short."""
    yield _lost(course)
    yield _answers(course)
    judged = course.judged(seconds)
    if len(judged) < JUDGED_SAMPLES:
        raise CommandFailed(f"{len(judged)} samples after the warm-up are too few; more --minutes")
    first, last = quarters([sample.private for sample in judged])
    mapped = quarters([sample.shared for sample in judged])
    growth = last / first - 1
    yield Row(
        what="growth of private memory after the warm-up, first to last quarter",
        goal=f"<= {DRIFT:.0%}",
        measured=f"{growth:+.1%} ({first:.0f} to {last:.0f} MB);"
        f" mapped files {mapped[0]:.0f} to {mapped[1]:.0f} MB",
        met=growth <= DRIFT,
        figures={"private": growth, "mapped": mapped, "samples": course.samples},
    )
    first, last = quarters([sample.descriptors for sample in judged])
    most = max(sample.descriptors for sample in judged[: len(judged) // 2])
    yield Row(
        what="open files, first to last quarter",
        goal=f"last <= {most}, the most of the first half",
        measured=f"{first:.0f} to {last:.0f}",
        met=last <= most,
        figures={"first": first, "last": last},
    )
    yield Row(
        what="slowest answer of each client",
        measured="; ".join(f"{name}: {value:.2f} s" for name, value in course.slowest.items()),
        figures=course.slowest,
    )
    yield Row(
        what="when what happened",
        measured="; ".join(f"{name}: {at:.0f} s" for name, at in course.events.items()),
        figures=course.events,
    )


def quarters(figures: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the first and of the last quarter of the figures."""
    size = max(1, round(len(figures) / 4))
    return median(figures[:size]), median(figures[-size:])


def _lost(course: Course) -> Row:
    differing = sum(course.differing.values())
    return Row(
        what=f"of {len(course.ledger.acknowledged):,} acknowledged writes: missing in the log,"
        " labels and rules not as acknowledged at the restart and at the end",
        goal="0, 0",
        measured=f"{course.lost}, {differing}",
        met=not course.lost and not differing,
        figures={"acknowledged": len(course.ledger.acknowledged), **course.differing},
    )


def _answers(course: Course) -> Row:
    """Judge the answers; only the kill before the restart may break connections."""
    wrong = {
        answer: times
        for answer, times in course.answers.items()
        if not answer.endswith(": 200")
        and not (answer.startswith(BEFORE) and answer.rpartition(": ")[2] in BROKEN)
    }
    return Row(
        what="answers other than 200, but for connections that the kill broke",
        goal="none",
        measured="; ".join(f"{answer}: {times}" for answer, times in wrong.items())
        or f"none of {sum(course.answers.values()):,}",
        met=not wrong,
        figures=dict(course.answers),
    )


app = command(Soak)

if __name__ == "__main__":
    sys.exit(run(app))
