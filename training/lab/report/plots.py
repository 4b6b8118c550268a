"""Plots as PNG, such as runs in the plane of P and PSP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from matplotlib.figure import Figure

from training.lab.report.runs import Run

COLORS = ("#0072b2", "#c8500a", "#00835f", "#a8447f", "#5b4bb5", "#8a6a00", "#555f6b")
MARKERS = "os^DvPX*"  # with 7 colors, 56 curves look different
LONGEST_NAME = 40  # characters that fit into a legend or a title


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Named points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0
    marker: int = 0


def draw(curves: Sequence[Curve], *, title: str, x: str, y: str) -> bytes:
    """Draw curves as PNG; equal curves give equal bytes."""
    figure = Figure(figsize=(6.4, 3.8 + 0.11 * len(curves)), dpi=130, layout="constrained")
    axes, lines = figure.add_subplot(), []
    for curve in curves:
        color = COLORS[curve.color % len(COLORS)]
        at, heights = zip(*curve.points, strict=True)
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
