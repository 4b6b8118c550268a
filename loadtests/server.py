"""A server of our own: `python -m service serve` as a child process with a fresh state folder."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep

HOST = "127.0.0.1"
STOP_SECONDS = 30.0
_LOG_TAIL_BYTES = 4_000
_POLL_SECONDS = 0.02


class ServerFailed(RuntimeError):
    """The server died, never became ready, or would not stop; the message ends with its log."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running, ready server."""

    process: subprocess.Popen[bytes]
    port: int
    state: Path
    log: Path
    seconds_to_ready: float  # from the start of the process

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process, for /proc."""
        return self.process.pid


@contextmanager
def running_server(
    bundle: Path, *, options: Sequence[str] = (), ready_seconds: float = 120.0
) -> Iterator[Server]:
    """Serve `bundle` on a free port of loopback for the block; stop by SIGTERM in any case.

    `options` are further ones of `python -m service serve`. Raises `ServerFailed` as soon as the
    process dies, when it is not ready in time, and when SIGTERM does not end it with status 0.
    """
    with tempfile.TemporaryDirectory(prefix="keymatch-load-") as folder:
        port, log, state = free_port(), Path(folder) / "server.log", Path(folder) / "state"
        command = [sys.executable, "-m", "service", "serve", "--bundle", str(bundle)]
        command += ["--state", str(state), "--host", HOST, "--port", str(port), *options]
        start = monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
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
            raise ServerFailed(f"the server ended with {process.returncode}\n{_tail(log)}")


def free_port() -> int:
    """A port of loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(
    process: subprocess.Popen[bytes], port: int, log: Path, deadline: float
) -> None:
    while not _ready(port):
        if process.poll() is not None:
            raise ServerFailed(f"the server died with {process.returncode}\n{_tail(log)}")
        if monotonic() > deadline:
            raise ServerFailed(f"the server is not ready in time\n{_tail(log)}")
        sleep(_POLL_SECONDS)


def _ready(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, then the server's own grace period; SIGKILL only for one that hangs."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _tail(log: Path) -> str:
    return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
