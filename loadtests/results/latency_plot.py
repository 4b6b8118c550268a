"""The figure of the latency benchmark: latency by percentile, throughput by connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.results import goals

_PERCENTILES = (50, 90, 99, 99.9)
_GOALS = {50: goals.PREDICT_P50_MS, 99: goals.PREDICT_P99_MS}
_MILLISECONDS = (1, 2, 4, 10, 20, 50, 100, 200, 500, 1000)  # ticks


def draw(
    path: Path, latencies: Mapping[str, Sequence[float]], throughput: Mapping[int, float]
) -> None:
    """Write a PNG; `latencies` in seconds by the curve's name, `throughput` by connections."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), width_ratios=(2, 1))
    _draw_latencies(left, latencies)
    _draw_throughput(right, throughput)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_latencies(axes: Any, latencies: Mapping[str, Sequence[float]]) -> None:
    for name, seconds in latencies.items():
        # The last point is the slowest request: of N requests, 1 lies above percentile 1 - 1 / N.
        above = np.logspace(0, -np.log10(len(seconds)), 200)
        axes.plot(1 / above, np.quantile(seconds, 1 - above) * 1000, label=name)
    axes.plot(
        [_position(percent) for percent in _GOALS],
        list(_GOALS.values()),
        "kv",
        label="goal for the first two",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [_position(percent) for percent in _PERCENTILES]
    axes.set_xticks(ticks, [f"p{percent}" for percent in _PERCENTILES])
    axes.minorticks_off()
    axes.set_yticks(_MILLISECONDS, [str(tick) for tick in _MILLISECONDS])
    axes.set_xlabel("percentile")
    axes.set_ylabel("milliseconds from the intended start")
    axes.set_title("/predict, open loop")
    axes.grid(alpha=0.3)
    axes.legend()


def _position(percent: float) -> float:
    """Where a percentile lies on the x axis: the number of requests of which one is slower."""
    return 1 / (1 - percent / 100)


def _draw_throughput(axes: Any, throughput: Mapping[int, float]) -> None:
    axes.bar([str(connections) for connections in throughput], list(throughput.values()))
    axes.axhline(goals.REQUESTS_PER_SECOND, color="black", linestyle="--", label="goal")
    axes.set_xlabel("connections, closed loop")
    axes.set_ylabel("requests a second")
    axes.set_title("saturation")
    axes.legend()
