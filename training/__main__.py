"""`python -m training` runs those commands of `keymatch` that are defined in this package."""

from __future__ import annotations

import sys

from service.command_line import run
from service.keymatch import commands_of, group

app = group(
    "training",
    "Prepare data sets, train encoders and measure them. More: training/README.md",
    commands_of("training"),
)


if __name__ == "__main__":
    sys.exit(run(app))
