"""`python -m service`: the commands of `service.cli`, which `keymatch` offers, too."""

from __future__ import annotations

import sys

from service.command_line import run
from service.keymatch import commands_of, group

app = group(
    "service",
    "Answer queries from a bundle over HTTP, and learn new labels. More: service/README.md",
    commands_of("service"),
)


if __name__ == "__main__":
    sys.exit(run(app))
