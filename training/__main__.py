"""`python -m training`: everything that happens before a bundle is exported."""

from __future__ import annotations

import sys

from cyclopts import App

from service.command_line import run
from training.commands import simulate, split
from training.commands.average import average
from training.commands.budget import budget
from training.commands.compare import compare
from training.commands.data.app import app as data
from training.commands.distill import distill
from training.commands.evaluate import evaluate
from training.commands.evaluate_novel import evaluate_novel
from training.commands.fit import fit
from training.commands.peer import peer
from training.commands.report import report
from training.commands.robustness import robustness
from training.commands.scoring.mix import mix
from training.commands.scoring.rerank import rerank
from training.commands.scoring.score import score
from training.commands.tables import tables
from training.commands.train import list_recipes, train
from training.ranks import leave_run

app = App(
    name="training",
    help="Prepare data sets, train encoders and measure them. More: training/README.md",
)
app.command(data)
app.command(split.app)
app.command(simulate.app)
app.command(fit)
app.command(train)
app.command(list_recipes, name="recipes")
app.command(distill)
app.command(score)
app.command(mix)
app.command(rerank)
app.command(average)
app.command(peer)
app.command(evaluate)
app.command(evaluate_novel)
app.command(budget)
app.command(robustness)
app.command(compare)
app.command(report)
app.command(tables)


def main() -> int:
    """Run the command of this process's arguments; returns its exit status."""
    try:
        return run(app)
    finally:
        leave_run()


if __name__ == "__main__":
    sys.exit(main())
