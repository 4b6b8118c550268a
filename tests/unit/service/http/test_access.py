"""API keys, addresses that need them, allowed host names, and sites whose pages may write."""

import hashlib
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import (
    Forbidden,
    ForeignOrigin,
    InvalidConfig,
    Unauthenticated,
    UnknownHost,
)
from service.core.tenant import Tenant
from service.http.access import (
    LOOK_SECONDS,
    MOST_REMEMBERED,
    Access,
    ApiKey,
    Sites,
    is_loopback,
    new_key,
    read_keys,
    require_keys,
)
from service.settings import ServerSettings

DIGEST = hashlib.sha256(b"secret").hexdigest()
KEYS = Access(keys=(ApiKey(name="shop", scopes=frozenset({"read"}), digest=""),))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def access(*scopes: str) -> Access:
    return Access(keys=(ApiKey(name="shop", scopes=frozenset(scopes), digest=DIGEST),))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("shop", "expected name:scopes:sha256"),
        (f"shop:{DIGEST}", "expected name:scopes:sha256"),
        (f":read:{DIGEST}", "expected name:scopes:sha256"),
        (f"shop:read:{DIGEST}:more", "expected name:scopes:sha256"),
        (f"shop:read:{DIGEST}:tenant=", "expected name:scopes:sha256"),
        (f"shop:read,admin:{DIGEST}:tenant=a", "read and write at most, not admin"),
        (f"shop:reed:{DIGEST}", "scopes are read, write, admin, metrics"),
        (f"shop::{DIGEST}", "scopes are read, write, admin, metrics"),
        (f"shop:read,:{DIGEST}", "scopes are read, write, admin, metrics"),
        ("shop:read:secret", "64 hexadecimal digits"),
        (f"shop:read:{DIGEST[:-1]}", "64 hexadecimal digits"),
        (f"shop:read:{DIGEST[:-1]}g", "64 hexadecimal digits"),
    ],
)
def test_a_wrong_line_is_named_and_never_quoted(file: Path, line: str, said: str) -> None:
    file.write_text(f"# first\nok:read:{DIGEST}\n{line}\n")
    with pytest.raises(InvalidConfig) as objection:
        read_keys(file)
    assert str(objection.value).startswith(f"{file}:3: ")
    assert said in str(objection.value)
    assert "secret" not in str(objection.value)


def test_a_file_without_keys_or_that_cannot_be_read_is_refused(file: Path) -> None:
    with pytest.raises(InvalidConfig, match=str(file)):
        read_keys(file)
    file.write_text("# none yet\n")
    with pytest.raises(InvalidConfig, match="holds no key"):
        read_keys(file)


def test_a_changed_file_counts_without_a_restart_and_a_broken_one_does_not(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in worker processes, which get a copy; whatever breaks the file, the old keys stay."""
    clock = [0.0]
    monkeypatch.setattr("service.http.access.monotonic", lambda: clock[0])

    def line(secret: str) -> str:
        return f"shop:read:{hashlib.sha256(secret.encode()).hexdigest()}\n"

    def admitted(access: Access, *secrets: str) -> list[bool]:
        found = []
        for secret in secrets:
            try:
                access.check(f"Bearer {secret}".encode(), "read")
            except Unauthenticated:
                found.append(False)
            else:
                found.append(True)
        return found

    file.write_text(line("first"))
    served = [read_keys(file)]
    served.append(pickle.loads(pickle.dumps(served[0])))
    assert [admitted(one, "first", "second") for one in served] == [[True, False]] * 2
    file.write_text(line("first") + line("second"))
    clock[0] += LOOK_SECONDS
    assert [admitted(one, "first", "second") for one in served] == [[True, True]] * 2
    file.write_text(line("second"))  # the first key is revoked
    clock[0] += LOOK_SECONDS
    assert [admitted(one, "first", "second") for one in served] == [[False, True]] * 2
    for broken in (line("third") + "no key\n", "", "\udcff", None):
        if broken is None:
            file.unlink()
        else:
            file.write_bytes(broken.encode(errors="surrogateescape"))
        caplog.clear()
        for _ in range(3):  # it is logged once
            clock[0] += LOOK_SECONDS
            assert admitted(served[0], "second", "third") == [True, False]
        [said] = caplog.records
        assert str(file) in said.__dict__["cause"] and said.levelname == "ERROR"
        assert served[0].restricted
    file.write_text(line("third"))
    clock[0] += LOOK_SECONDS
    assert admitted(served[0], "second", "third") == [False, True]


def test_a_key_admits_to_its_scopes_only_and_everybody_is_admitted_without_keys() -> None:
    Access().check(None, "admin")
    two_holders = Access(keys=access("read").keys + access("write").keys)
    for admitted in (access("read", "write"), two_holders):
        admitted.check(b"Bearer secret", "read")
        admitted.check(b"Bearer secret", "write")
        with pytest.raises(Forbidden, match="'admin'"):
            admitted.check(b"Bearer secret", "admin")


@pytest.mark.parametrize(
    "header",
    [None, b"", b"secret", b"Bearer", b"Bearer  ", b"Basic secret", b"Bearer Secret", b"\xe9"],
)
def test_other_headers_are_unauthenticated(header: bytes | None) -> None:
    with pytest.raises(Unauthenticated):
        access("read").check(header, "read")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1"])
def test_loopback_needs_no_keys_but_for_metrics(host: str) -> None:
    assert is_loopback(host)
    require_keys(ServerSettings(host=host), Access())
    guarded = ServerSettings(host=host, metrics_need_key=True)
    require_keys(guarded, access("metrics"))
    with pytest.raises(InvalidConfig, match="metrics_need_key is set"):
        require_keys(guarded, Access())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "", "127.0.0.1.nip"])
def test_other_addresses_need_keys_or_permission(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(InvalidConfig, match="--allow-anonymous"):
        require_keys(ServerSettings(host=host), Access())
    require_keys(ServerSettings(host=host, allow_anonymous=True), Access())
    require_keys(ServerSettings(host=host), access("read"))


def test_a_tenants_key_is_admitted_as_the_tenants(file: Path) -> None:
    key, line = new_key("shop", ["read"], tenant=Tenant("advertiser", "a=b:c"))
    file.write_text(line)
    admitted = read_keys(file).check(f"Bearer {key}".encode(), "read")
    assert admitted.tenant == Tenant("advertiser", "a=b:c")
    assert admitted.client == r"shop::advertiser=a=b\:c::"
    with pytest.raises(InvalidConfig, match="read and write at most, not metrics"):
        new_key("shop", ["read", "metrics"], tenant=Tenant("advertiser", "acme"))


def test_a_new_key_is_admitted_by_its_line(file: Path) -> None:
    key, line = new_key("shop-2", ["write", "read", "read"])
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", key)
    assert line == f"shop-2:read,write:{hashlib.sha256(key.encode()).hexdigest()}"
    file.write_text(f"# keys\n{line}\n")
    access = read_keys(file)
    assert access.check(f"Bearer {key}".encode(), "write").client == "shop-2::::"
    with pytest.raises(Forbidden):
        access.check(f"Bearer {key}".encode(), "admin")
    assert new_key("shop-2", ["read"])[0] != key


@pytest.mark.parametrize("name", ["", "a:b", "#shop", "two words", "new\nline"])
def test_a_name_that_the_file_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="cannot be a key's name"):
        new_key(name, ["read"])


def scope(host: str | None, origin: str | None = None, method: str = "POST") -> dict[str, Any]:
    given = {"accept": "*/*", "host": host, "origin": origin}
    headers = [(name.encode(), value.encode()) for name, value in given.items() if value]
    version = "1.1" if host else "1.0"  # only 1.0 allows no Host
    return {"type": "http", "http_version": version, "method": method, "headers": headers}


def sites(*, access: Access | None = None, **server: Any) -> Sites:
    return Sites(ServerSettings(**server), access or Access())


OF_LOOPBACK = (
    "localhost", "127.0.0.1", "[::1]", "LOCALHOST", None, "localhost:8000", "127.0.0.1:80",
    "[::1]:8000",
)  # fmt: skip
FOREIGN = (
    "evil.example", "evil.example:8000", "localhost.", "localhost.evil.example", "192.168.1.5",
    "service", "[::2]", "[", ":8000",
)  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_on_loopback_only_its_names_are_known(method: str) -> None:
    for host in OF_LOOPBACK:
        assert sites().refusal(scope(host, method=method)) is None, host
    for host in FOREIGN:
        assert isinstance(sites().refusal(scope(host, method=method)), UnknownHost), host


def test_a_container_without_keys_has_the_names_that_no_page_can_take() -> None:
    for host in ("localhost:8000", "10.0.0.7:8000", "service:8000", "keymatch"):
        assert sites(host="0.0.0.0").refusal(scope(host)) is None
    for host in ("evil.example", "keymatch.example.org:8000"):
        assert isinstance(sites(host="0.0.0.0").refusal(scope(host)), UnknownHost)


def test_names_follow_from_keys_the_address_and_a_setting() -> None:
    assert sites(host="0.0.0.0", access=KEYS).refusal(scope("any.example")) is None
    assert sites(access=KEYS).refusal(scope("any.example")) is not None
    assert sites(host="127.0.0.2").refusal(scope("127.0.0.2:8000")) is None
    assert sites(host="::1").refusal(scope("[::1]:8000")) is None
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


def test_more_names_than_are_remembered_are_known_as_well() -> None:
    local = sites()
    for port in range(2 * MOST_REMEMBERED):
        assert local.refusal(scope(f"localhost:{port}")) is None
    assert isinstance(local.refusal(scope("evil.example")), UnknownHost)
