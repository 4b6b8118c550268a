"""`run_on_two_ranks` runs several training commands in two processes that start only once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_on_two_ranks(commands: Sequence[Sequence[str | Path]], *, timeout: float = 280) -> None:
    """Run each command of `python -m training` in both ranks of one `torchrun`."""
    given = json.dumps([[str(part) for part in command] for command in commands])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "2", "-m", "tests.support.two_ranks", given]
    ended = subprocess.run(launcher, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert ended.returncode == 0, ended.stderr[-2000:]


def main(commands: Sequence[Sequence[str]]) -> int:
    """Run the commands in this rank; return the first exit status that is not 0."""
    from service.command_line import run
    from training.__main__ import app
    from training.ranks import leave_run

    try:
        return next((status for command in commands if (status := run(app, list(command)))), 0)
    finally:
        leave_run()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
