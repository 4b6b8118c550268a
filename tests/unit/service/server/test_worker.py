"""A worker's limits fit the number of connections that its process can keep open."""

from pathlib import Path

import pytest

from service.http.access import Access
from service.server.worker import ServeConfig
from service.settings import Settings


@pytest.mark.parametrize(
    ("most", "connections", "waiters"), [(1_000, 1_000, 200), (368, 368, 184), (5_000, 1_000, 200)]
)
def test_waiters_for_a_version_leave_connections_where_few_files_can_be_open(
    most: int, connections: int, waiters: int
) -> None:
    config = ServeConfig(
        bundle=Path("bundle"), bundles=Path(), state="", settings=Settings(), access=Access()
    ).with_connections(most)
    assert config.settings.server.connections == connections
    assert config.settings.engine.version_waiters == waiters
