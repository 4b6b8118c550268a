"""`python -m export`: the commands of `keymatch export`."""

from __future__ import annotations

import sys

from service.command_line import run
from service.keymatch import commands_of, group

app = group(
    "export",
    "Turn an encoder and a data set into a bundle that the service opens."
    " More: training/README.md, section Export",
    commands_of("export"),
)


if __name__ == "__main__":
    sys.exit(run(app))
