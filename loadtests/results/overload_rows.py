"""The rows of the report about overload, with their goals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadtests.clients.flood import BROKEN, LEFT, UNANSWERED
from loadtests.measure.latency_summary import Summary
from loadtests.measure.overload import USEFUL_SECONDS, Overloaded, Variant, statuses
from loadtests.results.result_table import Row

GOODPUT = 0.85  # of saturation
REFUSED_MS = 20.0  # median
READY_MS = 100.0  # slowest answer of /health/ready
RECOVERY_SECONDS = 2.0
_NAMES = {UNANSWERED: "unanswered", BROKEN: "broken", LEFT: "left", 200: "200", 429: "429"}
_EXPECTED = (LEFT, 200, 429)


def overload_rows(
    variant: Variant, factor: float, run: Overloaded, *, saturation: float
) -> list[Row]:
    """The rows of one run: answers, refusals, health and recovery, processor time."""
    what = f"{factor:g}x saturation, {variant.name}"
    return [
        _answered(what, run, saturation),
        _refused(what, run),
        _health(what, run),
        _processor(what, run),
    ]


def _answered(what: str, run: Overloaded, saturation: float) -> Row:
    share = run.answered_per_second / saturation
    latency = _summary(run.overload_latencies(200).tolist())
    return Row(
        what=f"{what}: answered ({run.rate:.0f}/s offered)",
        goal=f">= {GOODPUT:.0%} of saturation, p99 <= {1000 * USEFUL_SECONDS:g} ms",
        measured=f"{run.answered_per_second:.0f}/s = {share:.0%}; {_said(latency)}",
        met=share >= GOODPUT and latency is not None and latency.p99 <= 1000 * USEFUL_SECONDS,
        figures={
            "per_second": run.answered_per_second,
            "share": share,
            **_figures(latency),
        },
    )


def _refused(what: str, run: Overloaded) -> Row:
    latency = _summary(run.overload_latencies(429).tolist())
    counts = {_NAMES.get(key, str(key)): count for key, count in statuses(run.fate).items()}
    others = [key for key in statuses(run.fate) if key not in _EXPECTED]
    return Row(
        what=f"{what}: refused",
        goal=f"429 with a median of <= {REFUSED_MS:g} ms, nothing else",
        measured=f"{_said(latency)}; {counts}",
        met=latency is not None and latency.p50 <= REFUSED_MS and not others,
        figures={
            **_figures(latency),
            "statuses": counts,
            "idle_connections_lost": run.fate.idle_lost,
        },
    )


def _health(what: str, run: Overloaded) -> Row:
    health, recovery = run.health, run.recovery
    latency = _summary(health.seconds)
    back = "never" if recovery is None else f"after {recovery:.1f} s"
    return Row(
        what=f"{what}: /health/ready, and recovery",
        goal=f"200 within {READY_MS:g} ms, recovered after {RECOVERY_SECONDS:g} s",
        measured=f"{_said(latency)}"
        f"{f', FAILED {health.failures}' if health.failures else ''}; recovered {back}",
        met=not health.failures
        and latency is not None
        and latency.maximum <= READY_MS
        and recovery is not None
        and recovery <= RECOVERY_SECONDS,
        figures={
            **_figures(latency),
            "failures": health.failures,
            "recovery_seconds": recovery,
        },
    )


def _processor(what: str, run: Overloaded) -> Row:
    count = len(run.fate.status)
    answered = int(np.count_nonzero(run.fate.status == 200))
    server, client = run.server_processor, run.fate.processor
    return Row(
        what=f"{what}: processor time",
        goal="-",
        measured=f"server {1000 * server / max(1, answered):.2f} ms an answer, refusals included;"
        f" client {1e6 * client / count:.0f} us a request",
        figures={"server_seconds": server, "client_seconds": client, "requests": count},
    )


def _summary(seconds: Sequence[float]) -> Summary | None:
    return Summary.of(seconds) if len(seconds) else None


def _figures(latency: Summary | None) -> dict[str, Any]:
    return {"count": 0} if latency is None else latency.as_document()


def _said(latency: Summary | None) -> str:
    return "none" if latency is None else str(latency)
