"""`python -m export`: assembles the commands of `export.commands`."""

from __future__ import annotations

import sys

from cyclopts import App

from export.commands.bundle import bundle
from export.commands.encoder import encoder
from service.command_line import run

app = App(
    name="export",
    help="Turn an encoder and a data set into a bundle that the service opens."
    " More: training/README.md, section Export",
)
app.command(encoder)
app.command(bundle)


if __name__ == "__main__":
    sys.exit(run(app))
