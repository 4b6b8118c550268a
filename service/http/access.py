"""Access control: API keys with their scopes, and the sites whose pages may use the service.

Keys come from a file of `name:scopes:sha256(key)` lines. Scopes are `read`, `write`, `admin` and
`metrics`, separated by commas. A line that ends in `:FIELD=VALUE` is a tenant's, with the scopes
`read` and `write` at most. A client sends its key as `Authorization: Bearer KEY`. The file holds
hashes only; they are compared in constant time. A JSON Web Token is sent in the same way; see
service/http/tokens.py.

A web page can make the visitor's browser send requests to any address that the browser can reach,
such as a service on the visitor's own machine. Two headers, which no page can forge, reveal such
requests:

- `Origin` names the page's site. A browser sends it with every request that could change something.
- `Host` names the address as the page wrote it. If a page's own name resolves to this machine
  ("DNS rebinding"), the page has the same origin as the service, but its Host is a foreign name.

Clients other than browsers send no `Origin`, and as `Host` the name that they call.

Pages of the sites in the setting `origins` may write, and read the answers (CORS, in the Fetch
standard). Before most requests, their browsers ask whether the page may send it: a preflight. No
cookies are involved: pages send the API key themselves.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from service.core.errors import (
    Forbidden,
    ForeignOrigin,
    InvalidConfig,
    InvalidInput,
    KeymatchError,
    MalformedHttp,
    Unauthenticated,
    UnknownHost,
)
from service.core.tenant import Tenant, namespace

if TYPE_CHECKING:  # `keymatch key` imports neither
    from starlette.types import Scope

    from service.http.tokens import Tokens
    from service.settings import ServerSettings

SCOPES = ("read", "write", "admin", "metrics")
TENANT_SCOPES = ("read", "write")
KEY_BYTES = 32  # random bytes in a new key
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NEW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
SAFE_METHODS = ("GET", "HEAD")  # they change nothing
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# What a page of a named site may send, beyond what browsers always allow, and may read.
SENT_HEADERS = b"authorization, content-encoding, content-type, idempotency-key, x-request-id"
READ_HEADERS = b"retry-after, www-authenticate, x-request-id"
PREFLIGHT_SECONDS = b"600"  # for which a browser may remember the answer to a preflight
Headers = tuple[tuple[bytes, bytes], ...]
LOOK_SECONDS = 1.0  # between two looks at a file's time stamp
MOST_REMEMBERED = 64  # Host values whose check is cached; a name may come with any port

Content = TypeVar("Content")

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """One key of the keys file. Without a tenant, it sees and changes everything.

    A client with a JSON Web Token is described in the same way, without a digest.
    """

    name: str
    scopes: frozenset[str]
    digest: str = ""
    tenant: Tenant | None = None

    @property
    def client(self) -> str:
        """The beginning of the client's idempotency keys, as they are stored."""
        return namespace(self.name, "" if self.tenant is None else str(self.tenant))


ANYONE = ApiKey(name="", scopes=frozenset())  # if neither keys nor tokens are configured


@dataclass(frozen=True, kw_only=True)
class Access:
    """Admits requests by their API key or token; if neither is configured, every request.

    `keys` are those of a file, read again when it changes, or always the same ones.
    """

    keys: Collection[ApiKey] = ()
    tokens: Tokens | None = None

    @property
    def restricted(self) -> bool:
        """Whether a request needs an API key or a token."""
        return bool(self.keys) or self.tokens is not None

    def check(self, authorization: bytes | None, scope: str) -> ApiKey:
        """Return the client that a header names, or `ANYONE` if every request is admitted.

        Raises `Unauthenticated` without a known API key or valid token, and `Forbidden` if it lacks
        the scope.
        """
        if not self.restricted:
            return ANYONE
        scheme, _, given = (authorization or b"").partition(b" ")
        given = given.strip()
        if scheme.lower() != b"bearer" or not given:
            raise Unauthenticated("send an API key as 'Authorization: Bearer KEY'")
        digest = hashlib.sha256(given).hexdigest()
        # All keys are compared even after a match, so that the duration reveals nothing.
        holders = [key for key in self.keys if hmac.compare_digest(key.digest, digest)]
        if not holders and self.tokens is not None:
            holders = [self.tokens.check(given, digest)]
        if not holders:
            raise Unauthenticated("this API key is unknown")
        allowed = [key for key in holders if scope in key.scopes]
        if not allowed:
            kind = "API key" if holders[0].digest else "token"
            raise Forbidden(f"this {kind} lacks the scope {scope!r}")
        return allowed[0]


class FollowedFile(Generic[Content]):
    """The content of a file, which is read again when it changes. A broken file changes nothing."""

    def __init__(self, path: Path, read: Callable[[Path], Content], *, empty: Content) -> None:
        """Name the file; `read` raises `InvalidConfig`. The content is `empty` until it is read."""
        self._path, self._read, self.content = path, read, empty
        self._stamp: tuple[int, ...] | None = None  # of the file that was read last
        self._next_look = 0.0

    def read(self) -> None:
        """Read the file if it has changed. Raises `InvalidConfig`; the old content stays then."""
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp  # also of a broken file, which is reported once
            self.content = self._read(self._path)

    def look(self) -> Content:
        """Return the newest content; the file is looked at once per second, and errors logged."""
        now = monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            try:
                self.read()
            except InvalidConfig as error:
                log.error(
                    "a file of keys is broken; the old keys stay", extra={"cause": str(error)}
                )
        return self.content


class KeysFile(Collection[ApiKey]):
    """The API keys of a file, as they are now."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises `InvalidConfig`, naming the file and the line."""
        self._file = FollowedFile[tuple[ApiKey, ...]](path, _keys_in, empty=())
        self._file.read()

    def __iter__(self) -> Iterator[ApiKey]:
        """Yield the present keys."""
        return iter(self._file.look())

    def __len__(self) -> int:
        """Count the keys; there is always one or more."""
        return len(self._file.content)

    def __contains__(self, key: object) -> bool:
        """Return whether the file has this key now."""
        return key in self._file.look()


def read_keys(path: Path) -> Access:
    """Follow a keys file. Raises `InvalidConfig`, naming the file and the line."""
    return Access(keys=KeysFile(path))


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes with a file's content, () for none; a mounted secret is a symlink."""
    try:
        facts = path.stat()
    except OSError:
        return ()
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def _keys_in(path: Path) -> tuple[ApiKey, ...]:
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
    return keys


def new_key(name: str, scopes: Sequence[str], *, tenant: Tenant | None = None) -> tuple[str, str]:
    """Return a new random key, and the line of the keys file that admits it.

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
    if tenant is not None:
        _require_tenant_scopes(scopes, "scopes")
    key = secrets.token_urlsafe(KEY_BYTES)
    ordered = ",".join(scope for scope in SCOPES if scope in scopes)
    line = f"{name}:{ordered}:{hashlib.sha256(key.encode()).hexdigest()}"
    return key, line if tenant is None else f"{line}:{tenant}"


def require_keys(server: ServerSettings, access: Access) -> None:
    """Raise `InvalidConfig` if neither API keys nor tokens are configured, but settings need them.

    /metrics may need one, and an address beyond loopback needs one without explicit permission.
    """
    if access.tokens is None and (server.token_audience, server.token_issuer) != (None, None):
        raise InvalidConfig(
            "server.token_audience or server.token_issuer is set and no keys for tokens are: name"
            " a JSON Web Key Set in KEYMATCH_JWKS"
        )
    if access.restricted:
        return
    if not (server.allow_anonymous or is_loopback(server.host)):
        raise InvalidConfig(
            f"{server.host} can be reached from other machines and no API keys are set: name a"
            " keys file in KEYMATCH_API_KEYS, or pass --allow-anonymous to serve everybody"
        )
    if server.metrics_need_key:
        raise InvalidConfig(
            "server.metrics_need_key is set and no API keys are: name a keys file in"
            " KEYMATCH_API_KEYS, with a key of the scope 'metrics'"
        )


def is_loopback(host: str) -> bool:
    """Return whether `host` can be reached from this machine only."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _parse(line: str, where: str) -> ApiKey:
    parts = line.split(":", 3)
    try:
        name, scopes_text, digest, *rest = parts
        tenant = Tenant.parse(rest[0]) if rest else None
    except (ValueError, InvalidInput):  # the line is not quoted: it may hold a key
        name = digest = scopes_text = ""
        tenant = None
    if not name:
        raise InvalidConfig(
            f"{where}: expected name:scopes:sha256(key), and for a tenant :field=value behind it"
        )
    scopes, digest = frozenset(scopes_text.split(",")), digest.lower()
    if not scopes <= set(SCOPES):
        raise InvalidConfig(f"{where}: scopes are {', '.join(SCOPES)}")
    if not _DIGEST.fullmatch(digest):
        raise InvalidConfig(f"{where}: the key's SHA-256 must be 64 hexadecimal digits")
    if tenant is not None:
        _require_tenant_scopes(scopes, where)
    return ApiKey(name=name, scopes=scopes, digest=digest, tenant=tenant)


def _require_tenant_scopes(scopes: Collection[str], where: str) -> None:
    further = sorted(set(scopes) - set(TENANT_SCOPES))
    if further:
        raise InvalidConfig(
            f"{where}: a tenant's key has the scopes {' and '.join(TENANT_SCOPES)} at most, not"
            f" {further[0]}"
        )


class Sites:
    """Refuses requests with a foreign `Host`, and writes with a foreign `Origin`.

    Answers to the sites in `origins` get headers with which their pages may read them.
    """

    def __init__(self, server: ServerSettings, access: Access) -> None:
        """Accept the names in `server.hosts`; without them, see `_names`."""
        known = _names(server, access)
        self._accepts = lru_cache(MOST_REMEMBERED)(
            lambda host: known(_without_port(host.decode("latin-1").lower()))
        )
        self._origins = frozenset(origin.lower().encode() for origin in server.origins)

    def refusal(self, scope: Scope) -> KeymatchError | None:
        """Return why the request is refused, or None if it is accepted."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        origins = {value.lower() for name, value in scope["headers"] if name == b"origin"}
        if len(hosts) > 1:
            return MalformedHttp("the request has two Host headers: send one")
        if not hosts and scope["http_version"] == "1.1":
            return MalformedHttp("the request has no Host header, which HTTP/1.1 asks for")
        if not all(map(self._accepts, hosts)):
            return UnknownHost("this service has another name; see its setting 'hosts'")
        own = {host.lower() for host in hosts}
        foreign = [one for one in origins - self._origins if one.partition(b"://")[2] not in own]
        if scope["method"] in SAFE_METHODS or not foreign:
            return None
        return ForeignOrigin(
            "a page of another site may not use this service; see its setting 'origins'"
        )

    def headers(self, scope: Scope) -> Headers:
        """Return headers by which a browser lets a page of a named site read the answer."""
        if not self._origins:
            return ()
        # An answer depends on the site, so that a cache must not give it to another one.
        vary = (b"vary", b"origin")
        origin = self._named(scope)
        if origin is None:
            return (vary,)
        return (
            vary,
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", READ_HEADERS),
        )

    def preflight(self, scope: Scope, methods: str) -> Headers | None:
        """Return headers that allow what a page of a named site is about to send.

        `methods` are those of the path. None: the request is no such question.
        """
        given = dict(scope["headers"])
        asks = scope["method"] == "OPTIONS" and b"access-control-request-method" in given
        if not asks or self._named(scope) is None:
            return None
        allowed = (
            (b"access-control-allow-methods", methods.encode()),
            (b"access-control-allow-headers", SENT_HEADERS),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
        )
        # Asked before a public page uses a service in a private network.
        if b"access-control-request-private-network" in given:
            return (*allowed, (b"access-control-allow-private-network", b"true"))
        return allowed

    def _named(self, scope: Scope) -> bytes | None:
        """Return the Origin of a request, as it was sent, if it is one of the named sites."""
        sent = (value for name, value in scope["headers"] if name == b"origin")
        return next((value for value in sent if value.lower() in self._origins), None)


def _names(server: ServerSettings, access: Access) -> Callable[[str], bool]:
    """Return a test for the service's own names, in lower case. Without a setting these are:

    - On a loopback address: the names of loopback.
    - On another address with API keys or tokens: all. A foreign page has none and can do no harm.
    - On another address without, as in a container: every address, and names without a dot,
      such as those of containers. A foreign page cannot make either resolve to this service.
    """
    if server.hosts is not None:
        known = frozenset(host.lower() for host in server.hosts)
        return known.__contains__ if "*" not in known else lambda _name: True
    if is_loopback(server.host):
        own = f"[{server.host}]" if ":" in server.host else server.host
        return frozenset({*LOOPBACK_NAMES, own.lower()}).__contains__
    if access.restricted:
        return lambda _name: True
    return lambda name: "." not in name or _address(name) is not None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
