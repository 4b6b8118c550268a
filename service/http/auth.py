"""API keys and their scopes, from a file of `name:scopes:sha256(key)` lines.

Scopes are `read`, `write`, `admin` and `metrics`, separated by commas. A client sends its key as
`Authorization: Bearer KEY`. The file holds hashes only; they are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from service.core.errors import Forbidden, InvalidConfig, Unauthenticated

SCOPES = ("read", "write", "admin", "metrics")
KEY_BYTES = 32  # of randomness in a new key
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NEW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """One line of the file."""

    name: str
    scopes: frozenset[str]
    digest: str


@dataclass(frozen=True, kw_only=True)
class Access:
    """Admits requests by their API key; without any configured key every request is admitted."""

    keys: tuple[ApiKey, ...] = ()

    def check(self, authorization: bytes | None, scope: str) -> str:
        """The name of the API key in the header's value, empty if no keys are configured.

        Raises `Unauthenticated` without a known key, `Forbidden` if the key lacks the scope.
        """
        if not self.keys:
            return ""
        scheme, _, given = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not given.strip():
            raise Unauthenticated("send an API key as 'Authorization: Bearer KEY'")
        digest = hashlib.sha256(given.strip()).hexdigest()
        # All keys are compared even after a match, so that the duration reveals nothing.
        holders = [key for key in self.keys if hmac.compare_digest(key.digest, digest)]
        if not holders:
            raise Unauthenticated("this API key is unknown")
        allowed = [key for key in holders if scope in key.scopes]
        if not allowed:
            raise Forbidden(f"this API key lacks the scope {scope!r}")
        return allowed[0].name


def read_keys(path: Path) -> Access:
    """The keys in a file; raises `InvalidConfig`, which names the file and the line."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"API keys file {path} cannot be read: {error}") from error
    keys = tuple(
        _parse(line.strip(), f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    if not keys:
        raise InvalidConfig(
            f"API keys file {path} holds no key: add a line name:scopes:sha256(key)"
        )
    return Access(keys=keys)


def new_key(name: str, scopes: Sequence[str]) -> tuple[str, str]:
    """A fresh random key, and the line of the keys file that admits it.

    Raises `InvalidConfig` for a name or a scope that the file cannot hold.
    """
    if not _NEW_NAME.fullmatch(name):
        raise InvalidConfig(
            f"name: {name!r} cannot be a key's name: use letters, digits, '.', '_', '@' and '-',"
            " a letter or digit first",
            field="name",
        )
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise InvalidConfig(
            f"scopes: {unknown[0] if unknown else ''!r} is no scope; name one or more of"
            f" {', '.join(SCOPES)}, separated by commas",
            field="scopes",
        )
    key = secrets.token_urlsafe(KEY_BYTES)
    ordered = ",".join(scope for scope in SCOPES if scope in scopes)
    return key, f"{name}:{ordered}:{hashlib.sha256(key.encode()).hexdigest()}"


def require_keys_beyond_loopback(host: str, access: Access, *, allow_anonymous: bool) -> None:
    """Raise `InvalidConfig` for an address beyond loopback without keys or explicit permission."""
    if access.keys or allow_anonymous or is_loopback(host):
        return
    raise InvalidConfig(
        f"{host} can be reached from other machines and no API keys are set: name a keys file in"
        " KEYMATCH_API_KEYS, or pass --allow-anonymous to serve everybody"
    )


def require_keys_for_metrics(access: Access, *, metrics_need_key: bool) -> None:
    """Raise `InvalidConfig` where /metrics should need an API key and there is none."""
    if metrics_need_key and not access.keys:
        raise InvalidConfig(
            "server.metrics_need_key is set and no API keys are: name a keys file in"
            " KEYMATCH_API_KEYS, with a key of the scope 'metrics'"
        )


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parse(line: str, where: str) -> ApiKey:
    parts = line.split(":")
    if len(parts) != 3 or not parts[0]:
        raise InvalidConfig(f"{where}: expected name:scopes:sha256(key)")
    name, scopes, digest = parts[0], frozenset(parts[1].split(",")), parts[2].lower()
    if not scopes <= set(SCOPES):
        raise InvalidConfig(f"{where}: scopes are {', '.join(SCOPES)}")
    if not _DIGEST.fullmatch(digest):
        raise InvalidConfig(f"{where}: the key's SHA-256 must be 64 hexadecimal digits")
    return ApiKey(name=name, scopes=scopes, digest=digest)
