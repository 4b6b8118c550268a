"""A client of a running service, or of a new one with an empty label log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from service.core.errors import CommandFailed, InvalidInput
from training.experiments.service_process import HOST, running_server

ANSWER_SECONDS = 60.0
_JSON = {"content-type": "application/json"}


class RunningService:
    """One connection, kept open."""

    def __init__(self, host: str, port: int) -> None:
        """Connect at the first request."""
        self._connection = HTTPConnection(host, port, timeout=ANSWER_SECONDS)
        self._place = f"http://{host}:{port}"

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer; raises `CommandFailed` where there is none, or another than 200."""
        try:
            self._connection.request("POST", path, orjson.dumps(body), _JSON)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as error:
            raise CommandFailed(f"{self._place}{path}: {error}") from error
        if answer.status != 200:
            raise CommandFailed(f"{self._place}{path}: {answer.status} {content.decode()[:500]}")
        found: dict[str, Any] = orjson.loads(content)
        return found

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            self._connection.request("GET", "/health/ready")
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, HTTPException):
            self._connection.close()
            return False
        return answer.status == 200

    def close(self) -> None:
        """Give the connection up."""
        self._connection.close()


@contextmanager
def connect(url: str) -> Iterator[RunningService]:
    """A service that runs; raises `InvalidInput` for what is no address, or is not ready."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidInput(f"--url {url!r} is not of the form http://HOST:PORT")
    service = RunningService(parts.hostname, parts.port or 80)
    if not service.ready():
        raise InvalidInput(f"--url {url}: no service is ready there")
    with closing(service):
        yield service


@contextmanager
def start(bundle: Path) -> Iterator[RunningService]:
    """Serve a bundle for the block; raises `ServerFailed` with the end of the server's log."""
    with (
        running_server(bundle) as server,
        closing(RunningService(HOST, server.port)) as service,
    ):
        yield service
