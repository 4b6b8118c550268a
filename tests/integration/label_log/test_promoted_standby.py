"""A primary is demoted and its standby promoted: writes and followers move to the new primary."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from service.core.errors import LogError
from service.core.label_log import open_log
from tests.support.label_logs import append, ids
from tests.support.postgres_servers import Server, primary_and_standby
from tests.support.serving import local_service
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    with primary_and_standby() as both:
        yield both


def url_of(*servers: Server) -> str:
    """Return a URL by which new sessions find the server that can write, wherever it is."""
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://postgres@/postgres?{hosts}&target_session_attrs=read-write"


def promote(standby: Server) -> None:
    standby.control("promote")


def test_sessions_of_a_demoted_primary_are_replaced(servers: tuple[Server, Server]) -> None:
    primary, standby = servers
    with (
        closing(open_log(url_of(primary, standby))) as writer,
        closing(open_log(url_of(primary, standby))) as reader,
    ):
        append(writer, "before")
        assert ids(reader) == ["before"]
        wait_for(lambda: standby.holds_as_much_as(primary))
        primary.make_readonly()
        promote(standby)
        with suppress(LogError):  # the first write may still find the old session
            append(writer, "first")
        append(writer, "after")
        assert ids(writer)[-1] == "after"
        assert ids(reader) == ids(writer)  # although no session of the reader has failed


def test_the_service_writes_again(servers: tuple[Server, Server], tiny_bundle_folder: Path) -> None:
    primary, standby = servers
    with local_service(tiny_bundle_folder, url_of(primary, standby)) as service:

        def posted(text: str) -> int:
            labels = {"labels": [{"text": text}]}
            return service.request("POST", "/labels", json=labels).status_code

        assert posted("before") == 200
        wait_for(lambda: standby.holds_as_much_as(primary))
        primary.make_readonly()
        assert posted("refused") == 503
        promote(standby)
        wait_for(lambda: posted("after") == 200)
        assert service.request("GET", "/labels/before").status_code == 200
        assert service.request("GET", "/health/ready").status_code == 200
