"""`python -m loadtests.soak`: mixed load for half an hour; what a service loses, leaks and refuses.

Predictions, labels, deletions, clicks, probes and scrapes go on while blocks of live rows are
sealed and merged, a snapshot is written and served, and the process is killed and started again.
Reports acknowledged writes that are missing, answers other than 200, and by how much memory and
open files of the second life grow after its warm-up. Writes soak.json, soak.md and soak.png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from cyclopts import App

from loadtests.measure.environment import environment
from loadtests.queries import read_queries
from loadtests.results.result_table import Report, Row
from loadtests.soak import samples_plot
from loadtests.soak.course import BEFORE, Course, Rates, run_course
from loadtests.soak.samples import drift
from service.command_line import open_console, run
from service.core.bundle import manifest
from service.core.errors import CommandFailed

DRIFT = 0.02  # what memory may grow by
JUDGED_SAMPLES = 8  # at least, so that a window has two
BROKEN = ("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "RequestFailed")

app = App(name="loadtests.soak", help=__doc__)


@app.default
def soak(
    *,
    bundle: Path,
    out: Path,
    minutes: float = 30.0,
    reads: float = 40.0,
    labels: float = 4.0,
    clicks: float = 10.0,
) -> int:
    """Run, judge and report; the status is 1 where a goal is missed.

    Parameters
    ----------
    bundle
        The bundle's folder; its texts are the queries.
    out
        Folder for soak.json, soak.md and soak.png.
    minutes
        Duration beside snapshot and restart.
    reads
        Predictions a second.
    labels
        Requests of four labels a second.
    clicks
        Clicks a second.
    """
    manifest.read(bundle)  # before half an hour of work: it may be missing
    rates = Rates(reads=reads, labels=labels, clicks=clicks)
    open_console(stderr=True).print(f"{minutes:g} minutes of mixed load ...")
    with TemporaryDirectory(prefix="keymatch-soak-") as folder:
        course = run_course(
            bundle, Path(folder), read_queries(bundle), seconds=60 * minutes, rates=rates
        )
    rows = list(rows_of(course, seconds=60 * minutes))
    out.mkdir(parents=True, exist_ok=True)
    samples_plot.draw(out / "soak.png", course.samples, course.events)
    Report(
        title="Soak",
        settings={"minutes": minutes, **asdict(rates), "bundle": bundle.name},
        environment=environment(),
        rows=rows,
    ).publish(out, "soak")
    return 0 if all(row.met is not False for row in rows) else 1


def rows_of(course: Course, *, seconds: float) -> Iterator[Row]:
    """Judge a course; raises `CommandFailed` where it was too short for that."""
    yield _lost(course)
    yield _answers(course)
    judged = course.judged(seconds)
    if len(judged) < JUDGED_SAMPLES:
        raise CommandFailed(f"{len(judged)} samples after the warm-up are too few; more --minutes")
    private, whole = (
        drift(judged, lambda sample: sample.private),
        drift(judged, lambda sample: sample.resident),
    )
    yield Row(
        what="growth of memory after the warm-up, first to last quarter",
        goal=f"<= {DRIFT:.0%}",
        measured=f"{private.share:+.1%} (private, {private.first:.0f} to {private.last:.0f} MB);"
        f" {whole.share:+.1%} with mapped files ({whole.first:.0f} to {whole.last:.0f} MB)",
        met=private.share <= DRIFT,
        figures={"private": private.share, "resident": whole.share},
    )
    files = drift(judged, lambda sample: float(sample.descriptors))
    most = max(sample.descriptors for sample in judged[: len(judged) // 2])
    yield Row(
        what="open files, first to last quarter",
        goal=f"last <= {most}, the most of the first half",
        measured=f"{files.first:.0f} to {files.last:.0f}",
        met=files.last <= most,
        figures={"first": files.first, "last": files.last},
    )
    yield Row(
        what="slowest answer of each client",
        goal="-",
        measured="; ".join(f"{name}: {value:.2f} s" for name, value in course.slowest.items()),
        figures=course.slowest,
    )
    yield Row(
        what="when what happened",
        goal="-",
        measured="; ".join(f"{name}: {at:.0f} s" for name, at in course.events.items()),
        figures=course.events,
    )


def _lost(course: Course) -> Row:
    missing = sum(course.missing_labels.values())
    return Row(
        what=f"of {len(course.ledger.acknowledged):,} acknowledged writes: missing in the log,"
        " labels not as acknowledged at the restart and at the end",
        goal="0, 0",
        measured=f"{course.lost}, {missing}",
        met=not course.lost and not missing,
        figures={"acknowledged": len(course.ledger.acknowledged), **course.missing_labels},
    )


def _answers(course: Course) -> Row:
    """Connections may break in the first life, which ends with a kill, and in no other way."""
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


if __name__ == "__main__":
    sys.exit(run(app))
