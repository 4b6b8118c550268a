"""P@1 against the share of metadata that is missing or wrong: MOGIC's Tables 8 and 9 drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from training.evaluation.robustness import (
    NOT_READ,
    PREDICTED,
    TRUE,
    Condition,
    Measured,
    Robustness,
    RunRobustness,
)
from training.report.panels import Curve, Panel

METRIC = "P@1"
# Kind of change -> its name in the legend; a bank of 80 % of the items lacks 20 % of them.
KINDS = {
    "replaced": "links replaced",
    "dropped": "links dropped",
    "in a bank of": "smaller bank",
    "predicted in a bank of": "smaller bank, predicted",
}
SHRINKING = ("in a bank of", "predicted in a bank of")


def robustness_panels(documents: Sequence[Robustness]) -> Iterator[Panel]:
    """A panel for each file of `robustness`: colours are runs, markers are kinds of change."""
    for number, document in enumerate(documents, start=1):
        curves = [curve for style, run in enumerate(document.runs) for curve in _curves(run, style)]
        yield Panel(
            name=str(number) if len(documents) > 1 else document.dataset,
            title=document.dataset,
            x="share of links, or of items, that is missing or wrong",
            y=f"{METRIC}, percent",
            curves=tuple(curves),
        )


def _curves(run: RunRobustness, style: int) -> Iterator[Curve]:
    """A curve for each kind of change, with the draws' deviation; without metadata it is level."""
    level = run.under(NOT_READ)
    if level is not None:
        points = tuple((share, level.mean(METRIC)) for share in (0.0, 0.8))
        yield Curve(name=f"{run.run}: no metadata", points=points, style=style, marker=len(KINDS))
    for marker, (kind, name) in enumerate(KINDS.items()):
        start = run.under(PREDICTED if kind.startswith("predicted") else TRUE)
        changed = [one for one in run.measured if one.condition.metadata == kind]
        if not changed:
            continue
        known = [one for one in (start, *changed) if one is not None]
        placed = sorted(known, key=lambda one: _missing(one.condition))
        yield Curve(
            name=f"{run.run}: {name}",
            points=tuple((_missing(one.condition), one.mean(METRIC)) for one in placed),
            style=style,
            marker=marker,
            spread=tuple(_spread(one) for one in placed),
        )


def _missing(condition: Condition) -> float:
    """The share of the metadata that is missing or wrong."""
    return 1.0 - condition.share if condition.metadata in SHRINKING else condition.share


def _spread(measured: Measured) -> float:
    return measured.deviation(METRIC) or 0.0
