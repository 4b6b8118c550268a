"""The figure of the scale benchmark: what grows with the number of keys, and by which law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.scale.growth import fitted

_PANELS = {  # title -> unit, and the figures that are drawn
    "latency and processor time": ("milliseconds", ("p50_ms", "p99_ms", "processor_ms")),
    "build and start": ("seconds", ("vector_seconds", "index_seconds", "ready_seconds")),
    "resident memory": ("megabytes", ("resident_mb",)),
    "recall": ("share of the nearest", ("recall",)),
}
_LINEAR = ("recall",)  # all others have a logarithmic axis


def draw(path: Path, keys: Sequence[int], figures: Mapping[str, Sequence[float]]) -> None:
    """Write a PNG; `figures` holds one value for each number of keys, by the figure's name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8))
    for panel, (title, (unit, names)) in zip(axes.flat, _PANELS.items(), strict=True):
        for name in names:
            _draw_figure(panel, name, keys, figures[name])
        panel.set(title=title, ylabel=unit, xlabel="keys", xscale="log")
        panel.grid(alpha=0.3)
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_figure(panel: Any, name: str, keys: Sequence[int], values: Sequence[float]) -> None:
    if name in _LINEAR:
        panel.plot(keys, values, "o-", label=name)
        return
    panel.set_yscale("log")
    if len(keys) < 2:
        panel.plot(keys, values, "o", label=name)
        return
    law, points = fitted(keys, values), np.geomspace(min(keys), max(keys), 50)
    [line] = panel.plot(
        points, law.factor * points**law.exponent, label=f"{name}: keys^{law.exponent:.2f}"
    )
    panel.plot(keys, values, "o", color=line.get_color())
