"""A folder of bundles, a service that serves one of them, and calls in other threads."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving import LocalService, local_service


@pytest.fixture
def shelf(tiny_bundle_folder: Path, tmp_path: Path) -> Path:
    """A folder with two equal bundles: `tiny`, which is served, and `other`."""
    for name in ("tiny", "other"):
        shutil.copytree(tiny_bundle_folder, tmp_path / "shelf" / name)
    return tmp_path / "shelf"


@pytest.fixture
def served(shelf: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalService]:
    """A service; its parameter, if any, limits the seconds in which a child tries a bundle."""
    how = {"children": True, "warm_up_seconds": request.param} if hasattr(request, "param") else {}
    with local_service(shelf / "tiny", tmp_path / "state", **how) as service:
        yield service


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    """`aside(function, ...)` calls the function in another thread."""
    with ThreadPoolExecutor(8) as threads:
        yield threads.submit
