"""The picture of a benchmark: latency by percentile, throughput by connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

_NINES = (50, 90, 99, 99.9)
_GOALS = {50: 4.0, 99: 10.0}  # percentile -> milliseconds


def draw(
    path: Path,
    latencies: Mapping[str, Sequence[float]],
    throughput: Mapping[int, float],
    *,
    wished_throughput: float,
) -> None:
    """Write a PNG; `latencies` in seconds by the curve's name, `throughput` by connections."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), width_ratios=(2, 1))
    for name, seconds in latencies.items():
        # The last point is the worst request: 1 of n lies beyond percentile 100 * (1 - 1 / n).
        beyond = np.logspace(0, -np.log10(len(seconds)), 200)
        left.plot(1 / beyond, np.quantile(seconds, 1 - beyond) * 1000, label=name)
    left.plot(
        [1 / (1 - percent / 100) for percent in _GOALS],
        list(_GOALS.values()),
        "kv",
        label="goal for the first two",
    )
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xticks([1 / (1 - percent / 100) for percent in _NINES], [f"p{p}" for p in _NINES])
    left.minorticks_off()
    ticks = (1, 2, 4, 10, 20, 50, 100, 200, 500, 1000)
    left.set_yticks(ticks, [str(tick) for tick in ticks])
    left.set_xlabel("percentile")
    left.set_ylabel("milliseconds from the intended start")
    left.set_title("/predict, open loop")
    left.grid(alpha=0.3)
    left.legend()
    right.bar([str(connections) for connections in throughput], list(throughput.values()))
    right.axhline(wished_throughput, color="black", linestyle="--", label="goal")
    right.set_xlabel("connections, closed loop")
    right.set_ylabel("requests a second")
    right.set_title("saturation")
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
