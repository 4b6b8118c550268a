"""A server in a child process on this machine, and a client for a service.

Tests, load tests and replayed traffic start the service here by its command, without importing the
web service.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import orjson

from service.core.errors import CommandFailed
from service.core.processes.own_code import own_module

HOST = "127.0.0.1"
READY_SECONDS = 180.0  # for a start on a busy machine
STOP_SECONDS = 180.0  # more than the service's own limit, `shutdown_seconds`
_ANSWER_SECONDS = 60.0
_LOG_TAIL_BYTES = 4_000
_POLL_SECONDS = 0.02


class ServerFailed(CommandFailed):
    """The server died, was not ready in time, or did not stop. The message ends with its log."""


class Client:
    """A client of one service, over one persistent connection."""

    def __init__(self, host: str, port: int) -> None:
        """Store the address; the first request opens the connection."""
        self._connection = HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
        self._address = f"http://{host}:{port}"

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send JSON and return the decoded answer. Raises `CommandFailed` without a 200."""
        try:
            status, content = self._ask("POST", path, orjson.dumps(body))
        except (OSError, HTTPException) as error:
            raise CommandFailed(f"{self._address}{path}: {error}") from error
        if status != 200:
            raise CommandFailed(f"{self._address}{path}: {status} {content.decode()[:500]}")
        decoded: dict[str, Any] = orjson.loads(content)
        return decoded

    def ready(self) -> bool:
        """Ask whether the service is ready to answer queries."""
        try:
            return self._ask("GET", "/health/ready")[0] == 200
        except (OSError, HTTPException):
            self.close()
            return False

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        headers = {} if body is None else {"content-type": "application/json"}
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()


class Server:
    """A server process that listens on a loopback port and logs to a file."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a command; `environment` replaces this process's environment.

        Without `port` the command must start this service with `--port 0`: the port is read from
        its log. Raises `ServerFailed` if it ends before it listens.
        """
        self.log, self._start = log, monotonic()
        self.seconds_to_ready = 0.0  # since the start of the process; set by `wait_ready`
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        try:
            said = [] if port else self._wait("did not listen", self._listening, READY_SECONDS)
            self.port: int = port or said[0]["port"]
        except BaseException:
            self.kill()
            raise

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id, for /proc."""
        return self.process.pid

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until the server is ready. Raises `ServerFailed` if it ends, or after `seconds`."""
        with closing(Client(HOST, self.port)) as client:
            self._wait("was not ready", client.ready, seconds)
        self.seconds_to_ready = monotonic() - self._start

    def logged(self, message: str) -> list[dict[str, Any]]:
        """Return the lines of the service's log that have this message."""
        return [line for line in self.log_lines() if line["message"] == message]

    def log_lines(self) -> list[dict[str, Any]]:
        """Return all complete lines of the service's log."""
        lines = self.log.read_bytes().splitlines(keepends=True)
        return [orjson.loads(line) for line in lines if line[:1] == b"{" and line[-1:] == b"\n"]

    def stop(self) -> int:
        """Send SIGTERM and return the exit status; kill a server that does not stop in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.process.wait()

    def failure(self, what: str) -> ServerFailed:
        """Return an error that says what happened, with the end of the server's log."""
        tail = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return ServerFailed(f"the server {what}\n{tail}")

    def _listening(self) -> list[dict[str, Any]]:
        return self.logged("listening")

    def _wait(self, otherwise: str, condition: Callable[[], Any], seconds: float) -> Any:
        deadline = monotonic() + seconds
        while not (value := condition()):
            if self.process.poll() is not None:
                raise self.failure(f"ended with status {self.process.returncode}: it {otherwise}")
            if monotonic() > deadline:
                raise self.failure(f"{otherwise} in time")
            sleep(_POLL_SECONDS)
        return value


def serve_command(
    bundle: Path | str, state: Path | str, *options: str, program: Sequence[str] | None = None
) -> list[str]:
    """Return the command that serves a bundle on a free loopback port.

    `program` holds Python's arguments for another program, instead of this process's service.
    """
    start = own_module("service") if program is None else [sys.executable, *program]
    places = ["--bundle", str(bundle), "--state", str(state), "--port", "0"]
    return [*start, "serve", *places, *options]


@contextmanager
def running_server(
    bundle: Path,
    *,
    state: Path | None = None,
    options: Sequence[str] = (),
    ready_seconds: float = READY_SECONDS,
    checkout: Path | None = None,
) -> Iterator[Server]:
    """Serve `bundle` for the block, then stop the server by SIGTERM.

    `options` are added to `keymatch serve`. Without `state` a temporary label log is used.
    `checkout` is a folder with another version of the source to run. Raises `ServerFailed` if the
    server does not become ready or does not end with status 0, and `CommandFailed` for a checkout
    without the service.
    """
    with tempfile.TemporaryDirectory(prefix="keymatch-server-") as folder:
        program = None if checkout is None else ("-m", "service")
        place = state or Path(folder) / "state"
        command = serve_command(bundle, place, *options, program=program)
        server = Server(
            command, log=Path(folder) / "server.log", environment=_environment(checkout)
        )
        with stopped_afterwards(server, ready_seconds=ready_seconds):
            yield server


@contextmanager
def stopped_afterwards(server: Server, *, ready_seconds: float = READY_SECONDS) -> Iterator[None]:
    """Wait until a server is ready, and stop it after the block.

    Raises `ServerFailed` if it does not become ready, or does not end with status 0.
    """
    try:
        server.wait_ready(ready_seconds)
        yield
    except BaseException:
        server.stop()
        raise
    if server.stop() != 0:
        raise server.failure(f"ended with status {server.process.returncode}")


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _environment(checkout: Path | None) -> dict[str, str]:
    """Return this process's environment, with the packages of `checkout` first on Python's path."""
    if checkout is None:
        return dict(os.environ)
    if not (checkout / "service").is_dir():
        raise CommandFailed(f"{checkout} holds no folder `service`: it is no checkout")
    return {**os.environ, "PYTHONPATH": str(checkout.absolute()), "PYTHONSAFEPATH": "1"}
