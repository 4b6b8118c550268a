"""`python -m service`: assembles the commands of `service.cli`."""

from __future__ import annotations

import sys
from importlib.metadata import version

from cyclopts import App

from service.cli.check import check
from service.cli.compare import compare
from service.cli.key import key
from service.cli.log import log
from service.cli.predict import predict
from service.cli.serve import serve
from service.cli.snapshot import snapshot
from service.command_line import run

app = App(
    name="service",
    help="Answer queries from a bundle over HTTP, and learn new labels. More: service/README.md",
    version=lambda: version("keymatch"),
)
for command in (serve, predict, compare, check, log, snapshot, key):
    app.command(command)


if __name__ == "__main__":
    sys.exit(run(app))
