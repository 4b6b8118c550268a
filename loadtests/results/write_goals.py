"""The goals of writes that must keep a share of a busy machine; one function for each row."""

from __future__ import annotations

from loadtests.clients.closed_loop import Throughput
from loadtests.clients.open_loop import Outcome
from loadtests.measure.latency_summary import Summary
from loadtests.results.result_table import Row

FIRST_LABEL_MS = 30.0
LABEL_PROCESSOR_MS = 3.5
LABELS_P99_MS = 1_000.0  # beside reads at saturation, or beside busy processes


def first_label_row(seconds: list[float]) -> Row:
    """The first label after readiness, of several servers."""
    milliseconds = sorted(1000 * value for value in seconds)
    shown = ", ".join(f"{value:.1f}" for value in milliseconds)
    return Row(
        what=f"first label after readiness, {len(seconds)} starts",
        goal=f"<= {FIRST_LABEL_MS:g} ms",
        measured=f"{shown} ms",
        met=milliseconds[-1] <= FIRST_LABEL_MS,
        figures={"milliseconds": milliseconds},
    )


def label_cost_row(processor_seconds: list[float], latencies: list[float]) -> Row:
    """Processor time of a single label, in several rounds of labels posted one by one."""
    milliseconds = sorted(1000 * value for value in processor_seconds)
    median = milliseconds[len(milliseconds) // 2]
    latency = Summary.of(latencies)
    return Row(
        what="processor time a single posted label, the service and its children",
        goal=f"<= {LABEL_PROCESSOR_MS:g} ms",
        measured=f"{median:.2f} ms ({milliseconds[0]:.2f} to {milliseconds[-1]:.2f}"
        f" in {len(milliseconds)} rounds); {latency}",
        met=median <= LABEL_PROCESSOR_MS,
        figures={"processor_ms": milliseconds, **latency.as_document()},
    )


def labels_row(what: str, outcome: Outcome, *, reads: Throughput | None = None) -> Row:
    """Latency of single labels beside something that needs every core."""
    if not outcome.latencies:
        return Row(
            what=what,
            goal=f"p99 <= {LABELS_P99_MS:g} ms",
            measured=f"none was answered: {outcome.failures}",
            met=False,
            figures={"failures": outcome.failures},
        )
    latency = Summary.of(outcome.latencies)
    beside = f"; {reads.per_second:.0f} queries/s beside" if reads else ""
    failed = f"; FAILED: {outcome.failures}" if outcome.failures else ""
    return Row(
        what=what,
        goal=f"p99 <= {LABELS_P99_MS:g} ms, all answered",
        measured=f"{latency}{beside}{failed}",
        met=latency.p99 <= LABELS_P99_MS and not outcome.failures,
        figures={
            **latency.as_document(),
            "failures": outcome.failures,
            "queries_per_second": reads.per_second if reads else None,
        },
    )
