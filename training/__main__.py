"""`python -m training`: everything that happens before a bundle is exported."""

from __future__ import annotations

import sys

from cyclopts import App

from service.core.command_line import run
from training import data
from training.evaluate import evaluate

app = App(name="training", help="Keymatch offline: data sets, training and evaluation.")
app.command(data.app)
app.command(evaluate)


if __name__ == "__main__":
    sys.exit(run(app))
