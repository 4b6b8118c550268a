"""A service as a child process: `python -m service serve` on a free port, with a new label log.

Load tests and replayed traffic start their servers here. The web service is started by its command
and never imported.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep

from service.core.errors import CommandFailed

HOST = "127.0.0.1"
READY_SECONDS = 120.0
STOP_SECONDS = 40.0  # more than a service takes by its own setting, `shutdown_seconds`
_LOG_TAIL_BYTES = 4_000
_POLL_SECONDS = 0.02


class ServerFailed(CommandFailed):
    """The server died, was not ready in time, or did not stop; the message ends with its log."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running, ready server; `seconds_to_ready` count from the start of its process."""

    process: subprocess.Popen[bytes]
    port: int
    state: Path
    log: Path
    seconds_to_ready: float

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id, for /proc."""
        return self.process.pid


@contextmanager
def running_server(
    bundle: Path,
    *,
    options: Sequence[str] = (),
    ready_seconds: float = READY_SECONDS,
    checkout: Path | None = None,
) -> Iterator[Server]:
    """Serve `bundle` on a free port of loopback for the block, then stop the server by SIGTERM.

    `options` are added to `python -m service serve`; `checkout` is a folder with another version of
    the source, which then serves in place of the installed one. Raises `ServerFailed` as
    `running_process` does, and `CommandFailed` for a checkout without the service.
    """
    with tempfile.TemporaryDirectory(prefix="keymatch-server-") as folder:
        port, state = free_port(), Path(folder) / "state"
        command = [sys.executable, "-m", "service", "serve", "--bundle", str(bundle)]
        command += ["--state", str(state), "--host", HOST, "--port", str(port), *options]
        with running_process(
            command,
            port=port,
            state=state,
            ready_seconds=ready_seconds,
            environment=_environment(checkout),
        ) as server:
            yield server


@contextmanager
def running_process(
    command: Sequence[str],
    *,
    port: int,
    state: Path,
    ready_seconds: float = READY_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run the command of a server that answers GET /health/ready on `port`, then stop it.

    `environment` replaces this process's. Raises `ServerFailed` as soon as the process dies, when
    it is not ready in time, and when it does not end with status 0 after SIGTERM.
    """
    with tempfile.TemporaryDirectory(prefix="keymatch-log-") as folder:
        log, start = Path(folder) / "server.log", monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        try:
            _wait_until_ready(process, port, log, start + ready_seconds)
            yield Server(
                process=process,
                port=port,
                state=state,
                log=log,
                seconds_to_ready=monotonic() - start,
            )
        except BaseException:
            _stop(process)
            raise
        if _stop(process) != 0:
            raise ServerFailed(
                f"the server ended with status {process.returncode}\n{_log_tail(log)}"
            )


def _environment(checkout: Path | None) -> dict[str, str]:
    """This process's environment, in which Python finds the packages of `checkout` first."""
    if checkout is None:
        return dict(os.environ)
    if not (checkout / "service").is_dir():
        raise CommandFailed(f"{checkout} holds no folder `service`: it is no checkout")
    return {**os.environ, "PYTHONPATH": str(checkout.absolute()), "PYTHONSAFEPATH": "1"}


def free_port() -> int:
    """A port of loopback that is free right now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def is_ready(port: int) -> bool:
    """Whether a server answers queries on this port of loopback."""
    connection = HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _wait_until_ready(
    process: subprocess.Popen[bytes], port: int, log: Path, deadline: float
) -> None:
    while not is_ready(port):
        if process.poll() is not None:
            raise ServerFailed(
                f"the server ended with status {process.returncode} before it was ready\n"
                f"{_log_tail(log)}"
            )
        if monotonic() > deadline:
            raise ServerFailed(f"the server was not ready in time\n{_log_tail(log)}")
        sleep(_POLL_SECONDS)


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Send SIGTERM and return the exit status; kill a server that does not stop in time."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _log_tail(log: Path) -> str:
    return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
