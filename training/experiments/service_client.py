"""An HTTP client of a running service, or of one started with an empty label log."""

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

RESPONSE_SECONDS = 60.0
_JSON = {"content-type": "application/json"}


class RunningService:
    """A client that keeps one connection open."""

    def __init__(self, host: str, port: int) -> None:
        """Set the address; the connection is opened by the first request."""
        self._connection = HTTPConnection(host, port, timeout=RESPONSE_SECONDS)
        self._address = f"http://{host}:{port}"

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The decoded response; raises `CommandFailed` without one or for any status but 200."""
        try:
            self._connection.request("POST", path, orjson.dumps(body), _JSON)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, HTTPException) as error:
            raise CommandFailed(f"{self._address}{path}: {error}") from error
        if response.status != 200:
            raise CommandFailed(
                f"{self._address}{path}: {response.status} {content.decode()[:500]}"
            )
        decoded: dict[str, Any] = orjson.loads(content)
        return decoded

    def ready(self) -> bool:
        """Whether the service is ready to answer queries."""
        try:
            self._connection.request("GET", "/health/ready")
            response = self._connection.getresponse()
            response.read()
        except (OSError, HTTPException):
            self._connection.close()
            return False
        return response.status == 200

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextmanager
def connect(url: str) -> Iterator[RunningService]:
    """A client of the service at `url`; raises `InvalidInput` if no service is ready there."""
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
