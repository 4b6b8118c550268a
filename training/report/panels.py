"""The data of the report's figures: Figures 2 and 3 of RAE-XMC, Table 8 as a figure, P and PSP.

Each panel is a separate picture, so that a narrow screen can show them below each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.report.runs import Run

Points = tuple[tuple[float, float], ...]

# (shortest time in seconds, seconds per unit, unit)
_UNITS = ((10_800.0, 3_600.0, "hours"), (600.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a figure; a run has the same `style` in all figures; `chosen` indexes `points`.

    `style` is the colour and, where there is no `marker`, the marker; `spread` is a band around
    the points.
    """

    name: str
    points: Points
    style: int
    chosen: int | None = None
    marker: int | None = None
    spread: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture; `name` is its file name.

    `ticks` are (position, text) on the x axis; None lets the plot choose them.
    """

    name: str
    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    ticks: tuple[tuple[float, str], ...] | None = None
    logarithmic: bool = False
    limits: tuple[float, float] | None = None  # of y, where panels are to be compared


def plane_panels(runs: Sequence[Run]) -> list[Panel]:
    """PSP@1 and PSP@5 against P@1: a point for each run as chosen, where there are several runs.

    What gains on frequent labels at the cost of rare ones moves right and down.
    """
    if len(runs) < 2:
        return []
    return [
        Panel(
            name=f"plane-{metric.replace('@', '')}",
            title=f"P@1 and {metric}",
            x="P@1, percent",
            y=f"{metric}, percent",
            curves=tuple(
                Curve(
                    name=run.name,
                    style=style,
                    points=((run.chosen.metrics["P@1"], run.chosen.metrics[metric]),),
                )
                for style, run in _styled_with_peers(runs)
            ),
        )
        for metric in ("PSP@1", "PSP@5")
    ]


def memorization_panels(runs: Sequence[Run]) -> list[Panel]:
    """Table 8 as a figure: P@1 and P@5 against lambda."""
    values = sorted({value for run in runs for value in run.by_memorization})
    # Many of the paper's values are near 0, so all are drawn at equal distances.
    place = {value: float(at) for at, value in enumerate(values)}
    swept = [(style, run) for style, run in _styled(runs) if len(run.by_memorization) > 1]
    if not swept:
        return []
    return [
        Panel(
            name=f"lambda-{metric.replace('@', '')}",
            title=f"{metric} by λ",
            x="λ (not to scale)",
            y=f"{metric}, percent",
            ticks=tuple((at, f"{value:g}") for value, at in place.items()),
            curves=tuple(
                Curve(
                    name=run.name,
                    style=style,
                    points=tuple(
                        (place[value], one.metrics[metric])
                        for value, one in run.by_memorization.items()
                    ),
                    chosen=_place(run.chosen.memorization, run.by_memorization),
                )
                for style, run in swept
            ),
        )
        for metric in ("P@1", "P@5")
    ]


def depth_panels(runs: Sequence[Run]) -> list[Panel]:
    """Figure 3: P@1, P@5 and R@100 against b."""
    depths = sorted({depth for run in runs for depth in run.by_depth})
    swept = [(style, run) for style, run in _styled(runs) if len(run.by_depth) > 1]
    if not swept:
        return []
    return [
        Panel(
            name=f"b-{metric.replace('@', '')}",
            title=f"{metric} by b",
            x="b, retrieved keys a query",
            y=f"{metric}, percent",
            ticks=tuple((float(depth), str(depth)) for depth in depths),
            logarithmic=True,
            curves=tuple(
                Curve(
                    name=run.name,
                    style=style,
                    points=tuple(
                        (float(depth), one.metrics[metric]) for depth, one in run.by_depth.items()
                    ),
                    chosen=_place(run.chosen.depth, run.by_depth),
                )
                for style, run in swept
            ),
        )
        for metric in ("P@1", "P@5", "R@100")
    ]


def time_panels(runs: Sequence[Run]) -> list[Panel]:
    """Figure 2: held-out P@1 against training time; all runs at their best lambda, then each."""
    trained = {style: run for style, run in _styled(runs) if held_out_curves(run)}
    curves = {style: held_out_curves(run) for style, run in trained.items()}
    if not curves:
        return []
    values = sorted({value for by_memorization in curves.values() for value in by_memorization})
    heights = [y for by in curves.values() for points in by.values() for _, y in points]
    margin = 0.05 * (max(heights) - min(heights)) or 1.0
    limits = (min(heights) - margin, max(heights) + margin)
    best = tuple(_at_best(trained[style].name, by, style) for style, by in curves.items())
    panels = []
    if len(best) > 1:
        panels.append(_time_panel("time", "All runs, each at its best λ", best, limits))
    for style, by_memorization in curves.items():
        each = tuple(
            Curve(name=f"λ {value:g}", points=points, style=values.index(value))
            for value, points in by_memorization.items()
        )
        panels.append(_time_panel(f"time-{style + 1}", trained[style].name, each, limits))
    return panels


def held_out_curves(run: Run) -> dict[float, Points]:
    """By ascending lambda: (seconds, held-out P@1) of each validation; empty for a peer."""
    curves: dict[float, list[tuple[float, float]]] = {}
    for check in run.results.history:
        if "P@1" in check.metrics:
            curves.setdefault(check.memorization, []).append((check.seconds, check.metrics["P@1"]))
    return {value: tuple(sorted(points)) for value, points in sorted(curves.items())}


def _styled(runs: Sequence[Run]) -> list[tuple[int, Run]]:
    """The runs that any figure draws, each with its style."""
    return list(enumerate(run for run in runs if run.by_memorization or run.results.history))


def _styled_with_peers(runs: Sequence[Run]) -> list[tuple[int, Run]]:
    """All runs: those of `_styled` with the style that they have there, then the others."""
    styled = _styled(runs)
    drawn = {id(run) for _, run in styled}
    others = (run for run in runs if id(run) not in drawn)
    return [*styled, *enumerate(others, start=len(styled))]


def _time_panel(
    name: str, title: str, curves: tuple[Curve, ...], limits: tuple[float, float]
) -> Panel:
    longest = max(x for curve in curves for x, _ in curve.points)
    _, scale, unit = next(entry for entry in _UNITS if longest >= entry[0])
    scaled = (
        Curve(
            name=curve.name,
            points=tuple((x / scale, y) for x, y in curve.points),
            style=curve.style,
        )
        for curve in curves
    )
    return Panel(
        name=name,
        title=title,
        x=f"{unit} of training",
        y="held-out P@1, percent",
        curves=tuple(scaled),
        limits=limits,
    )


def _at_best(name: str, by_memorization: dict[float, Points], style: int) -> Curve:
    """The curve of the lambda that reaches the highest P@1."""
    value = max(by_memorization, key=lambda value: max(y for _, y in by_memorization[value]))
    return Curve(name=f"{name}, λ {value:g}", points=by_memorization[value], style=style)


def _place(value: float | None, swept: dict[Any, Any]) -> int | None:
    return list(swept).index(value) if value in swept else None
