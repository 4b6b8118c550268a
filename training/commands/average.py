"""`python -m training average`: one run of several, by the mean of their weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from service.command_line import open_console
from service.core.errors import InvalidInput, MissingExtra
from service.core.files.atomic import refuse_unwritable
from training.checkpoints.run_json import BEST, RUN
from training.commands.options import MANY
from training.datasets import lf_xmc
from training.progress import say

if TYPE_CHECKING:
    from training.combining.weight_average import Average

MOST_RUNS = 10


def average(
    *,
    run: Annotated[tuple[Path, ...], MANY],
    data: Path,
    out: Path,
    way: Literal["greedy", "uniform"] = "greedy",
) -> None:
    """Average the weights of runs of one architecture; the result is a run like any.

    Transformer, n-grams, heads and the system's own weights are averaged. Which runs take part is
    chosen on the held-out rows, which must be the same in all. A query costs what it costs in one
    of them. Average runs that began with the same weights, and so with the same seed where they
    have n-grams, and that differ in learning rate, steps or loss.

    Parameters
    ----------
    run
        The runs' folders: --run A --run B, or --run A B.
    data
        The data set's folder.
    out
        The folder of the new run; `score --run` measures it.
    way
        greedy adds runs to the best one where the held-out rows lose nothing; uniform takes all.
    """
    if (out / RUN).exists() or (out / BEST).exists():
        raise InvalidInput(f"--out {out} already holds a run; take another folder")
    refuse_unwritable(out)
    dataset = lf_xmc.read(data)
    try:
        from training.combining.runs import open_runs
        from training.combining.weight_average import average_runs
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    opened = open_runs(run, dataset, most=MOST_RUNS)
    say(f"averaging {', '.join(one.name for one in opened)}")
    console = open_console()
    made = average_runs(opened, dataset, out, way=way, console=console)
    console.print(_said(made, out), soft_wrap=True)


def _said(made: Average, out: Path) -> str:
    alone = ", ".join(f"{name} {score:.2f}" for name, score in made.alone.items())
    return (
        f"{out}/{BEST}: the average of {', '.join(made.kept)}; mean of the metrics on held-out rows"
        f" {made.score:.2f}, of each run alone {alone}"
    )
