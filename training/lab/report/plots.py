"""Plots as PNG: runs in the plane of P and PSP, and the loss by wrong metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO

from matplotlib.figure import Figure

from training.lab.report.runs import Run
from training.lab.robustness import NOT_READ, PREDICTED, TRUE, Condition, Robustness, RunRobustness

COLORS = ("#0072b2", "#c8500a", "#00835f", "#a8447f", "#5b4bb5", "#8a6a00", "#555f6b")
MARKERS = "os^DvPX*"  # with 7 colors, 56 curves look different
LONGEST_NAME = 40  # characters that fit into a legend or a title
METRIC = "P@1"
# Kind of change -> its name in the legend. A bank of 80 % of the items lacks 20 % of them.
KINDS = {
    "replaced": "links replaced",
    "dropped": "links dropped",
    "in a bank of": "smaller bank",
    "predicted in a bank of": "smaller bank, predicted",
}
SHRINKING = ("in a bank of", "predicted in a bank of")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Named points (x, y); `spread` is a band around them."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0
    marker: int = 0
    spread: Sequence[float] = ()


def draw(curves: Sequence[Curve], *, title: str, x: str, y: str) -> bytes:
    """Draw curves as PNG; equal curves give equal bytes."""
    figure = Figure(figsize=(6.4, 3.8 + 0.11 * len(curves)), dpi=130, layout="constrained")
    axes, lines = figure.add_subplot(), []
    for curve in curves:
        color = COLORS[curve.color % len(COLORS)]
        at, heights = zip(*curve.points, strict=True)
        if curve.spread:
            pairs = list(zip(heights, curve.spread, strict=True))
            below, above = [y - band for y, band in pairs], [y + band for y, band in pairs]
            axes.fill_between(at, below, above, color=color, alpha=0.15, linewidth=0)
        marker = MARKERS[curve.marker % len(MARKERS)]
        lines += axes.plot(at, heights, marker if len(at) == 1 else f"{marker}-", color=color)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    names = [curve.name[:LONGEST_NAME] for curve in curves]
    legend = figure.legend(lines, names, loc="outside lower center", ncols=2, frameon=False)
    for text in (*legend.get_texts(), axes.set_title(title[: 2 * LONGEST_NAME])):
        text.set_parse_math(False)  # a name may contain dollar signs
    picture = BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def plane(runs: Sequence[Run]) -> bytes:
    """Draw PSP@5 against P@1, with a point for each run at its chosen settings.

    A system that gains on frequent labels at the cost of rare ones moves right and down.
    """
    curves = [
        Curve(
            name=run.name,
            points=[(run.chosen.metrics["P@1"], run.chosen.metrics["PSP@5"])],
            color=place,
            marker=place,
        )
        for place, run in enumerate(runs)
    ]
    return draw(curves, title="P@1 and PSP@5", x="P@1, percent", y="PSP@5, percent")


def robustness_picture(found: Robustness) -> bytes:
    """Draw P@1 by missing or wrong metadata: colors are runs, markers are kinds of change."""
    curves = [curve for place, run in enumerate(found.runs) for curve in loss_curves(run, place)]
    x = "share of links, or of items, that is missing or wrong"
    return draw(curves, title=found.dataset, x=x, y=f"{METRIC}, percent")


def loss_curves(run: RunRobustness, color: int) -> Iterator[Curve]:
    """A curve per kind of change, with the draws' deviation; level for a run without metadata."""
    level = run.under(NOT_READ)
    if level is not None:
        points = [(share, level.mean(METRIC)) for share in (0.0, 0.8)]
        yield Curve(name=f"{run.run}: no metadata", points=points, color=color, marker=len(KINDS))
    for marker, (kind, name) in enumerate(KINDS.items()):
        start = run.under(PREDICTED if kind.startswith("predicted") else TRUE)
        changed = [one for one in run.measured if one.condition.metadata == kind]
        if not changed:
            continue
        known = [one for one in (start, *changed) if one is not None]
        placed = sorted(known, key=lambda one: _missing(one.condition))
        yield Curve(
            name=f"{run.run}: {name}",
            points=[(_missing(one.condition), one.mean(METRIC)) for one in placed],
            color=color,
            marker=marker,
            spread=[one.deviation(METRIC) or 0.0 for one in placed],
        )


def _missing(condition: Condition) -> float:
    """The share of the metadata that is missing or wrong."""
    return 1.0 - condition.share if condition.metadata in SHRINKING else condition.share
