"""Panels as PNG, for light and for dark screens."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

from matplotlib.figure import Figure

from training.report.panels import Curve, Panel

_MARKERS = "os^DvPX*"  # with 7 colours, 56 curves look different
_LONGEST = 40  # characters of a name in a legend


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours for one background; most colour-blind people can tell the curves apart."""

    paper: str
    ink: str
    grid: str
    curves: tuple[str, ...]


LIGHT = Theme(
    paper="#ffffff",
    ink="#1d2733",
    grid="#d9dee5",
    curves=(
        "#0072b2",
        "#c8500a",
        "#00835f",
        "#a8447f",
        "#5b4bb5",
        "#8a6a00",
        "#555f6b",
    ),
)
DARK = Theme(
    paper="#161b22",
    ink="#dbe2ea",
    grid="#343c47",
    curves=(
        "#58b5ee",
        "#f28e3c",
        "#35c99b",
        "#ee9ccb",
        "#ab9cf5",
        "#e6cf45",
        "#a9b3bf",
    ),
)


def draw(panel: Panel, theme: Theme) -> bytes:
    """Return a panel as PNG."""
    names = [shortened(curve.name) for curve in panel.curves]
    columns = 1 if max(map(len, names)) > 16 else min(3, len(names))
    legend_lines = -(-len(names) // columns)
    figure = Figure(figsize=(4.8, 3.3 + 0.22 * legend_lines), dpi=160, layout="constrained")
    figure.set_facecolor(theme.paper)
    axes = figure.add_subplot()
    lines = [_plot(axes, curve, theme) for curve in panel.curves]
    _dress(axes, panel, theme)
    legend = figure.legend(
        lines,
        names,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        labelcolor=theme.ink,
        fontsize=10,
    )
    for text in (*legend.get_texts(), axes.title):
        text.set_parse_math(False)  # a name may hold dollar signs
    picture = BytesIO()
    # Without matplotlib's version in the file, the same results give the same bytes.
    figure.savefig(
        picture, format="png", metadata={"Software": None}, pil_kwargs={"optimize": True}
    )
    return picture.getvalue()


def shortened(name: str) -> str:
    """A name that fits a legend; the middle of a long name is left out."""
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 + 1 :]}"


def _plot(axes: Any, curve: Curve, theme: Theme) -> Any:
    colour = theme.curves[curve.style % len(theme.curves)]
    marker = _MARKERS[(curve.style if curve.marker is None else curve.marker) % len(_MARKERS)]
    x, y = zip(*curve.points, strict=True)
    if curve.spread is not None:
        below = [value - off for value, off in zip(y, curve.spread, strict=True)]
        above = [value + off for value, off in zip(y, curve.spread, strict=True)]
        axes.fill_between(x, below, above, color=colour, alpha=0.15, linewidth=0)
    (line,) = axes.plot(
        x,
        y,
        color=colour,
        marker=marker,
        markersize=4.5,
        linewidth=1.6,
        linestyle=_line_style(curve, theme),
    )
    if curve.chosen is not None:
        at = curve.points[curve.chosen]
        axes.plot(*at, "o", markersize=12, markerfacecolor="none", markeredgecolor=colour)
    return line


def _line_style(curve: Curve, theme: Theme) -> str:
    if len(curve.points) == 1:  # also in the legend, where a line would mean a curve
        return "none"
    return "-" if curve.style < len(theme.curves) else "--"


def _dress(axes: Any, panel: Panel, theme: Theme) -> None:
    """Draw title, axes, grid and ticks."""
    axes.set_facecolor(theme.paper)
    axes.set_title(shortened(panel.title), color=theme.ink, fontsize=12)
    axes.set_xlabel(panel.x, color=theme.ink, fontsize=10.5)
    axes.set_ylabel(panel.y, color=theme.ink, fontsize=10.5)
    axes.tick_params(colors=theme.ink, labelsize=10)
    axes.grid(color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_color(theme.grid)
    if panel.logarithmic:
        axes.set_xscale("log")
    if panel.ticks is not None:
        axes.set_xticks([at for at, _ in panel.ticks], [text for _, text in panel.ticks])
        axes.minorticks_off()
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
