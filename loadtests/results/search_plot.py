"""The figure of search curves: recall against processor time, one panel a depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = Sequence[tuple[float, float]]  # milliseconds and recall


def draw(path: Path, panels: Mapping[str, Mapping[str, Curve]]) -> None:
    """Write a PNG of curves by panel and name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4.5), squeeze=False)
    for panel, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for name, curve in curves.items():
            milliseconds, recalls = zip(*curve, strict=True)
            panel.plot(milliseconds, recalls, marker="o", markersize=3, label=name)
        panel.axhline(0.99, color="grey", linewidth=0.8, linestyle=":")
        panel.set(title=title, xlabel="processor time of a search, ms", ylabel="recall")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
