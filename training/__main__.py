"""`python -m training`: everything that happens before a bundle is exported."""

from __future__ import annotations

import sys

from cyclopts import App

from service.core.command_line import run
from training import data, simulate, split
from training.adapt import adapt
from training.budget import budget
from training.compare import compare
from training.evaluate import evaluate
from training.evaluate_novel import evaluate_novel
from training.peer import peer
from training.report.command import report
from training.score import score
from training.train import list_recipes, train

app = App(name="training", help="Keymatch offline: data sets, training and evaluation.")
app.command(data.app)
app.command(split.app)
app.command(simulate.app)
app.command(train)
app.command(list_recipes, name="recipes")
app.command(score)
app.command(peer)
app.command(evaluate)
app.command(evaluate_novel)
app.command(adapt)
app.command(budget)
app.command(compare)
app.command(report)


if __name__ == "__main__":
    sys.exit(run(app))
