"""`python -m loadtests.load`: loads a fresh server with locust, with limits on its answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from service.child_server import ServerFailed, running_server
from service.command_line import open_console, run

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_GRACE_SECONDS = 60.0  # for locust's start and stop, in addition to the load itself

app = App(name="loadtests.load", help=__doc__)


@app.default
def load(
    *locust: Annotated[str, Parameter(allow_leading_hyphen=True)],
    bundle: Path,
    seconds: int = 20,
    users: int = 20,
) -> int:
    """Start a server, load it, and stop it; return locust's exit status, 0 within the limits.

    Parameters
    ----------
    locust
        Further options for locust after `--`, limits among them (`-- --max-p99 50`); see
        `loadtests/locustfile.py`.
    bundle
        The bundle's folder; its texts are the queries.
    seconds
        How many seconds to send requests.
    users
        Number of simulated users, who send five requests per second each.
    """
    options = ["--users", str(users), "--spawn-rate", str(users), "--run-time", f"{seconds}s"]
    try:
        with running_server(bundle, options=["--no-access-log"]) as server:
            options += ["--bundle", str(bundle), *locust]
            status = run_locust(server.url, options, timeout=seconds + _GRACE_SECONDS)
    except (ServerFailed, subprocess.TimeoutExpired) as error:
        open_console().print(f"FAILED: {error}", soft_wrap=True)
        return 2
    failed = f"FAILED: locust ended with status {status}; its log says why"
    open_console().print(failed if status else "PASSED: within all limits")
    return status


def run_locust(url: str, options: Sequence[str], *, timeout: float) -> int:
    """Run locust without its web page against a server; return locust's exit status."""
    command = [sys.executable, "-m", "locust", "--locustfile", str(LOCUSTFILE), "--headless"]
    command += ["--only-summary", "--stop-timeout", "10", "--host", url, *options]
    # locust imports the locustfile by its path alone, so this package must be on PYTHONPATH.
    paths = [str(LOCUSTFILE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, env=environment, timeout=timeout, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(app))
