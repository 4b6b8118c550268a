"""Which names a service has, and which pages may write to it."""

from typing import Any

import pytest

from service.core.errors import ForeignOrigin, UnknownHost
from service.http.auth import Access, ApiKey
from service.http.browser.sites import MOST_REMEMBERED, Sites
from service.settings import ServerSettings

KEYS = Access(keys=(ApiKey(name="shop", scopes=frozenset({"read"}), digest=""),))


def scope(host: str | None, origin: str | None = None, method: str = "POST") -> dict[str, Any]:
    given = {"accept": "*/*", "host": host, "origin": origin}
    headers = [(name.encode(), value.encode()) for name, value in given.items() if value]
    return {"type": "http", "method": method, "headers": headers}


def sites(*, access: Access | None = None, **server: Any) -> Sites:
    return Sites(ServerSettings(**server), access or Access())


@pytest.mark.parametrize(
    ("host", "known"),
    [
        *((name, True) for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST", None)),
        *((name, True) for name in ("localhost:8000", "127.0.0.1:80", "[::1]:8000")),
        *(
            (name, False)
            for name in ("evil.example", "evil.example:8000", "localhost.evil.example")
        ),
        *(
            (name, False)
            for name in ("192.168.1.5", "service", "[::2]", "[", ":8000", "localhost.")
        ),
    ],
)
def test_on_loopback_only_its_names_are_known(host: str | None, known: bool) -> None:
    for method in ("GET", "POST"):
        refusal = sites().refusal(scope(host, method=method))
        assert refusal is None if known else isinstance(refusal, UnknownHost)


def test_the_address_that_is_listened_on_is_a_name() -> None:
    assert sites(host="127.0.0.2").refusal(scope("127.0.0.2:8000")) is None
    assert sites(host="::1").refusal(scope("[::1]:8000")) is None


@pytest.mark.parametrize(
    ("host", "known"),
    [
        *((name, True) for name in ("localhost:8000", "10.0.0.7:8000", "service:8000", "keymatch")),
        *((name, False) for name in ("evil.example", "keymatch.example.org:8000")),
    ],
)
def test_a_container_without_keys_has_the_names_that_no_page_can_take(
    host: str, known: bool
) -> None:
    assert (sites(host="0.0.0.0").refusal(scope(host)) is None) == known


def test_with_keys_beyond_loopback_every_name_is_known() -> None:
    assert sites(host="0.0.0.0", access=KEYS).refusal(scope("any.example")) is None
    assert sites(access=KEYS).refusal(scope("any.example")) is not None


def test_a_setting_names_the_hosts() -> None:
    named = sites(host="0.0.0.0", hosts=("Keymatch.example",), access=KEYS)
    assert named.refusal(scope("keymatch.example:443")) is None
    assert isinstance(named.refusal(scope("localhost")), UnknownHost)
    assert sites(hosts=("*",)).refusal(scope("any.example")) is None


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "OPTIONS"])
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost", "http://localhost:80", "file://"]
)
def test_a_page_of_another_site_cannot_write(method: str, origin: str) -> None:
    refusal = sites().refusal(scope("localhost:8000", origin, method))
    assert isinstance(refusal, ForeignOrigin)
    assert sites().refusal(scope("localhost:8000", origin, "GET")) is None


def test_the_services_own_page_and_named_sites_may_write() -> None:
    assert sites().refusal(scope("localhost:8000", "http://localhost:8000")) is None
    named = sites(origins=("https://Tools.example",))
    assert named.refusal(scope("localhost:8000", "https://tools.example")) is None
    assert named.refusal(scope("localhost:8000", "https://tools.example.evil")) is not None
    assert sites().refusal(scope(None, "http://localhost:8000")) is not None


def test_a_second_host_does_not_hide_behind_the_first() -> None:
    both = scope("localhost")
    both["headers"].append((b"host", b"evil.example"))
    assert isinstance(sites().refusal(both), UnknownHost)


def test_a_bounded_number_of_names_is_remembered() -> None:
    local = sites()
    for port in range(3 * MOST_REMEMBERED):
        assert local.refusal(scope(f"localhost:{port}")) is None
    assert len(local._remembered) == MOST_REMEMBERED
