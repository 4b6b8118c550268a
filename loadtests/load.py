"""`python -m loadtests.load`: a server of its own under locust's load, held to limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from service.command_line import run
from training.experiments.service_process import ServerFailed, running_server

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_GRACE_SECONDS = 60.0  # locust's start and stop, beyond the load itself

app = App(name="loadtests.load", help=__doc__)


@app.default
def load(
    *locust: Annotated[str, Parameter(allow_leading_hyphen=True)],
    bundle: Path,
    seconds: int = 20,
    users: int = 20,
    user_rate: float = 5.0,
) -> int:
    """Start a server, load it, stop it; the exit status is locust's: 0 within the limits.

    Parameters
    ----------
    locust
        After `--`: further options for locust, limits among them (`-- --max-p99 50`); see
        `loadtests/locustfile.py`.
    bundle
        The bundle's folder; its texts are the queries.
    seconds
        How long to load.
    users
        Simulated users.
    user_rate
        Requests a second of each user.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    command = [sys.executable, "-m", "locust", "--locustfile", str(LOCUSTFILE), "--headless"]
    command += ["--only-summary", "--users", str(users), "--spawn-rate", str(users)]
    command += ["--run-time", f"{seconds}s", "--stop-timeout", "10"]
    command += ["--bundle", str(bundle), "--user-rate", str(user_rate), *locust]
    root = str(LOCUSTFILE.parents[1])  # locust imports the file by its path alone
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        with running_server(bundle, options=["--no-access-log"]) as server:
            status = subprocess.run(
                [*command, "--host", server.url],
                env=environment,
                timeout=seconds + _GRACE_SECONDS,
                check=False,
            ).returncode
    except (ServerFailed, subprocess.TimeoutExpired) as error:
        console.print(f"FAILED: {error}")
        return 2
    console.print("PASSED: within all limits" if status == 0 else f"FAILED: status {status}")
    return status


if __name__ == "__main__":
    sys.exit(run(app))
