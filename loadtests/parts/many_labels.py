"""`python -m loadtests.parts.many_labels`: IRENE's second stage with up to a million labels.

Measures the time of a training step and the memory of classifiers, optimizer moments and
associations. Neither depends on the texts, so labels, instances and vectors are random. Each number
of labels is measured in a separate process. Writes many_labels.json and many_labels.md.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from loadtests.measure.environment import environment
from loadtests.results.result_table import Report, Row
from service.command_line import run

RECIPE, INSTANCES = "irene-lf-amazontitles-1.3m", 1_600  # instances of a batch
GOAL_GB = 16.0  # the memory of an ordinary machine

app = App(name="loadtests.parts.many_labels", help=__doc__)


@app.default
def many_labels(
    *,
    out: Path,
    labels: Annotated[
        tuple[int, ...], Parameter(consume_multiple=True, negative=(), help="Numbers of labels.")
    ] = (100_000, 1_000_000),
    steps: Annotated[int, Parameter(help="Steps for each; the first is not counted.")] = 8,
) -> int:
    """Measure and report.

    Parameters
    ----------
    out
        Folder for the results.
    """
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
        measured = list(pool.map(measure, labels, [steps] * len(labels)))
    Report(
        title="Many labels",
        settings={"recipe": RECIPE, "instances": INSTANCES, "steps": steps},
        environment=environment(),
        rows=[row(figures) for figures in measured],
    ).publish(out, "many_labels")
    return 0


def measure(labels: int, steps: int) -> dict[str, Any]:
    """Figures of one number of labels; torch is imported here, by the child processes only."""
    from loadtests.measure.irene_step import measure_steps

    return measure_steps(RECIPE, labels=labels, instances=INSTANCES, steps=steps)


def row(figures: dict[str, Any]) -> Row:
    """Hold one number of labels against the memory of an ordinary machine."""
    return Row(
        what=f"IRENE's second stage with {figures['labels']:,} labels",
        goal=f"<= {GOAL_GB:g} GB",
        measured=f"{figures['gigabytes']:.1f} GB, {figures['step_ms']:,.0f} ms a step",
        met=figures["gigabytes"] <= GOAL_GB,
        figures=figures,
    )


if __name__ == "__main__":
    sys.exit(run(app))
