"""One service for all contract tests: some write to it, but none relies on its contents."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import LocalService, local_service


@pytest.fixture(scope="module")
def service(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalService]:
    with local_service(tiny_bundle_folder, tmp_path_factory.mktemp("state")) as running:
        yield running
