"""P@1 against the share of metadata that is missing or wrong, as one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from training.experiments.metadata_conditions import (
    ALONE,
    BANK,
    PREDICTED_BANK,
    PREDICTED_ITEMS,
    TRUE,
    Condition,
)
from training.report.panels import Curve, Panel
from training.report.plots import LIGHT, draw

METRIC = "P@1"
SHRINKING = (BANK, PREDICTED_BANK)  # a bank of 80 % of the items lacks 20 % of them


def draw_robustness(
    rows: Sequence[tuple[str, Condition, Mapping[str, float]]], *, title: str
) -> bytes:
    """A PNG with a curve for each run and kind of change; runs without metadata are level."""
    names = {(run, of.metadata): None for run, of, _ in rows if of.share or of == ALONE}
    curves = [
        Curve(name=f"{run}: {kind}", points=_points(rows, run, kind), style=style)
        for style, (run, kind) in enumerate(names)
    ]
    panel = Panel(
        name="robustness",
        title=f"{title}: {METRIC} by missing or wrong metadata",
        x="share of links, or of items, that is missing or wrong",
        y=f"{METRIC}, percent",
        curves=tuple(curves),
    )
    return draw(panel, LIGHT)


def _points(
    rows: Sequence[tuple[str, Condition, Mapping[str, float]]], run: str, kind: str
) -> tuple[tuple[float, float], ...]:
    """(share, P@1), ascending by share; a curve of changes to true metadata begins at the true."""
    own = [(of, metrics[METRIC]) for name, of, metrics in rows if name == run]
    if kind == ALONE.metadata:
        level = own[0][1]
        return (0.0, level), (0.8, level)
    points = [
        (1.0 - of.share if kind in SHRINKING else of.share, value)
        for of, value in own
        if of.metadata == kind
    ]
    start = PREDICTED_ITEMS if kind == PREDICTED_BANK else TRUE
    points += [(0.0, value) for of, value in own if of == start]
    return tuple(sorted(points))
