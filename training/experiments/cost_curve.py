"""What reduced memories cost, on held-out rows and on test rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.core.files.atomic import write_file
from training.experiments.study import Side, Study
from training.reduction import METHODS, reduce
from training.reduction.memory import Memory, Reduced
from training.report.panels import Curve, Panel
from training.report.plots import LIGHT, draw
from training.selection.validation import ValidationSettings

PLOTTED = ("P@1", "P@5", "R@100", "PSP@5")
# One rule for all choices: the mean that early stopping, lambda and b go by.
CRITERION = ValidationSettings().metrics


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A method at a budget: keys and votes of the test's memory, metrics in percent."""

    method: str
    share: float
    rows: int
    votes: int
    held_out: dict[str, float]
    test: dict[str, float]

    @property
    def criterion(self) -> float:
        """What choices go by: the mean of the held-out rows' metrics."""
        return float(np.mean([self.held_out[name] for name in CRITERION]))


def measure(study: Study, *, methods: Sequence[str], shares: Sequence[float]) -> Iterator[Cost]:
    """Every method at every budget, at the lambda and b that were chosen for the whole memory."""
    held_out, test = study.held_out(), study.test()
    for method in methods:
        chosen_on = reduce(memory_of(held_out), method=method, shares=shares)
        reported = reduce(memory_of(test), method=method, shares=shares)
        for share, reduced in reported.items():
            yield Cost(
                method=method,
                share=share,
                rows=len(reduced.instances),
                votes=int(reduced.labels_of.nnz),
                held_out=metrics(held_out, chosen_on[share]),
                test=metrics(test, reduced),
            )


def memory_of(side: Side) -> Memory:
    """What a method may look at: never the queries."""
    return Memory(instances=side.instances, labels_of=side.labels_of, labels=side.labels)


def metrics(side: Side, reduced: Reduced) -> dict[str, float]:
    """A reduced memory's metrics."""
    keys, retrieved = side.memory(reduced.instances, reduced.labels_of)
    ranked = side.ranked(keys, retrieved, memorization=side.choices.memorization)
    return side.measure(ranked)


def preferred(costs: Sequence[Cost]) -> str | None:
    """The method with the best mean on held-out rows over the budgets below 1, if there are any."""
    means = {
        method: np.mean(
            [cost.criterion for cost in costs if cost.method == method and cost.share < 1.0]
        )
        for method in METHODS
        if any(cost.method == method and cost.share < 1.0 for cost in costs)
    }
    return max(means, key=lambda method: means[method]) if means else None


def write_plots(costs: Sequence[Cost], path: Path, *, title: str) -> None:
    """One PNG a metric, `curve.png` as `curve-P1.png` and so on."""
    for metric in PLOTTED:
        name = metric.replace("@", "")
        panel = Panel(
            name=name,
            title=f"{title}: {metric} by instance keys",
            x="share of the instance keys",
            y=f"{metric}, percent of test rows",
            curves=tuple(
                Curve(
                    name=method,
                    style=style,
                    points=tuple(
                        sorted(
                            (one.share, one.test[metric]) for one in costs if one.method == method
                        )
                    ),
                )
                for style, method in enumerate(dict.fromkeys(cost.method for cost in costs))
            ),
        )
        write_file(path.with_name(f"{path.stem}-{name}{path.suffix}"), draw(panel, LIGHT))
