"""Services behind real sockets: one is shared by a file, other tests start their own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.http.server import HttpService, http_service


@pytest.fixture(scope="module")
def service(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpService]:
    """A service with default settings."""
    with http_service(tiny_bundle_folder, tmp_path_factory.mktemp("state")) as service:
        yield service


@pytest.fixture
def serve(tiny_bundle_folder: Path, tmp_path: Path) -> Iterator[Callable[..., HttpService]]:
    """`serve(server=..., limits=..., **engine)` starts a service with these settings."""
    with ExitStack() as running:
        yield lambda **settings: running.enter_context(
            http_service(tiny_bundle_folder, tmp_path / "state", **settings)
        )
