"""The loss of quality by smaller memories, on held-out rows and on test rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.core.files.atomic import write_file
from training.experiments.study import Study, StudySplit
from training.reduction import METHODS, reduce
from training.reduction.memory import ReducedMemory, WholeMemory
from training.report.panels import Curve, Panel
from training.report.plots import LIGHT, draw
from training.selection.validation import ValidationSettings

PLOTTED = ("P@1", "P@5", "R@100", "PSP@5")
# One rule for all choices: the mean by which early stopping, lambda and b are chosen.
CRITERION = ValidationSettings().metrics


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One method at one budget: size of the test rows' memory, metrics in percent."""

    method: str
    share: float
    rows: int
    votes: int
    held_out: dict[str, float]
    test: dict[str, float]

    @property
    def criterion(self) -> float:
        """The mean of the held-out rows' metrics, by which a method is chosen."""
        return float(np.mean([self.held_out[name] for name in CRITERION]))


def measure(study: Study, *, methods: Sequence[str], shares: Sequence[float]) -> Iterator[Cost]:
    """Every method at every budget, with the lambda and b that were chosen for the whole memory."""
    held_out, test = study.held_out(), study.test()
    for method in methods:
        for_held_out = reduce(memory_of(held_out), method=method, shares=shares)
        for_test = reduce(memory_of(test), method=method, shares=shares)
        for share, reduced in for_test.items():
            yield Cost(
                method=method,
                share=share,
                rows=len(reduced.instances),
                votes=int(reduced.labels_of.nnz),
                held_out=metrics(held_out, for_held_out[share]),
                test=metrics(test, reduced),
            )


def memory_of(split: StudySplit) -> WholeMemory:
    """The memory that a method reduces; it never sees the queries."""
    return WholeMemory(instances=split.instances, labels_of=split.labels_of, labels=split.labels)


def metrics(split: StudySplit, reduced: ReducedMemory) -> dict[str, float]:
    """Metrics of the split's queries with a reduced memory."""
    memory, retrieved = split.memory(reduced.instances, reduced.labels_of)
    ranked = split.ranked(memory, retrieved, memorization=split.choices.memorization)
    return split.measure(ranked)


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
    """Draw one PNG for each metric: for `curve.png`, `curve-P1.png` and so on."""
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
                            (cost.share, cost.test[metric])
                            for cost in costs
                            if cost.method == method
                        )
                    ),
                )
                for style, method in enumerate(dict.fromkeys(cost.method for cost in costs))
            ),
        )
        write_file(path.with_name(f"{path.stem}-{name}{path.suffix}"), draw(panel, LIGHT))
