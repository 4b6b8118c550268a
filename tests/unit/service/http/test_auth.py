"""API keys: the file, the comparison, and the addresses that need keys."""

import hashlib
import re
from pathlib import Path

import pytest

from service.core.errors import Forbidden, InvalidConfig, Unauthenticated
from service.http.auth import (
    Access,
    ApiKey,
    is_loopback,
    new_key,
    read_keys,
    require_keys_beyond_loopback,
    require_keys_for_metrics,
)

DIGEST = hashlib.sha256(b"secret").hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def access(*scopes: str) -> Access:
    return Access(keys=(ApiKey(name="shop", scopes=frozenset(scopes), digest=DIGEST),))


def test_lines_comments_and_blanks(file: Path) -> None:
    file.write_text(
        f"# all keys\n\nshop:read:{DIGEST}\n  # indented\n  feed:read,write:{DIGEST} \n"
    )
    shop, feed = read_keys(file).keys
    assert (shop.name, shop.scopes) == ("shop", {"read"})
    assert (feed.name, feed.scopes) == ("feed", {"read", "write"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("shop", "expected name:scopes:sha256"),
        (f"shop:{DIGEST}", "expected name:scopes:sha256"),
        (f":read:{DIGEST}", "expected name:scopes:sha256"),
        (f"shop:read:{DIGEST}:more", "expected name:scopes:sha256"),
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


def test_a_file_without_keys_opens_nothing(file: Path) -> None:
    file.write_text("# none yet\n")
    with pytest.raises(InvalidConfig, match="holds no key"):
        read_keys(file)


def test_a_file_that_cannot_be_read_is_named(file: Path) -> None:
    with pytest.raises(InvalidConfig, match=str(file)):
        read_keys(file)


def test_without_keys_everybody_may_do_everything() -> None:
    Access().check(None, "admin")


def test_a_key_admits_to_its_scopes_only() -> None:
    access("read", "write").check(b"Bearer secret", "write")
    with pytest.raises(Forbidden, match="'admin'"):
        access("read", "write").check(b"Bearer secret", "admin")


def test_two_holders_of_one_key_add_their_scopes() -> None:
    both = Access(keys=access("read").keys + access("write").keys)
    both.check(b"Bearer secret", "read")
    both.check(b"Bearer secret", "write")


@pytest.mark.parametrize(
    "header",
    [None, b"", b"secret", b"Bearer", b"Bearer  ", b"Basic secret", b"Bearer Secret", b"\xe9"],
)
def test_other_headers_are_unauthenticated(header: bytes | None) -> None:
    with pytest.raises(Unauthenticated):
        access("read").check(header, "read")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert is_loopback(host)
    require_keys_beyond_loopback(host, Access(), allow_anonymous=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "", "127.0.0.1.nip"])
def test_other_addresses_need_keys_or_permission(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(InvalidConfig, match="--allow-anonymous"):
        require_keys_beyond_loopback(host, Access(), allow_anonymous=False)
    require_keys_beyond_loopback(host, Access(), allow_anonymous=True)
    require_keys_beyond_loopback(host, access("read"), allow_anonymous=False)


def test_metrics_cannot_need_a_key_where_there_is_none() -> None:
    require_keys_for_metrics(access("metrics"), metrics_need_key=True)
    require_keys_for_metrics(Access(), metrics_need_key=False)
    with pytest.raises(InvalidConfig, match="metrics_need_key is set"):
        require_keys_for_metrics(Access(), metrics_need_key=True)


def test_a_new_key_is_admitted_by_its_line(file: Path) -> None:
    key, line = new_key("shop-2", ["write", "read", "read"])
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", key)
    assert line == f"shop-2:read,write:{hashlib.sha256(key.encode()).hexdigest()}"
    file.write_text(f"# keys\n{line}\n")
    access = read_keys(file)
    assert access.check(f"Bearer {key}".encode(), "write") == "shop-2"
    with pytest.raises(Forbidden):
        access.check(f"Bearer {key}".encode(), "admin")
    assert new_key("shop-2", ["read"])[0] != key


@pytest.mark.parametrize("name", ["", "a:b", "#shop", "two words", "new\nline"])
def test_a_name_that_the_file_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="cannot be a key's name"):
        new_key(name, ["read"])
