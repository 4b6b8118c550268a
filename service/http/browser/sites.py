"""Which names the service answers to, and which pages may write to it.

A page that somebody visits can make the browser send requests to any address that the browser can
reach, such as a service on the visitor's own machine. Two headers, which no page can forge, tell
such requests apart:

- `Origin` names the page's site. A browser sends it with every request that could change something.
- `Host` names the address as the page wrote it. A page that has its own name resolved to this
  machine ("DNS rebinding") is of the same origin as the service, but its Host is a foreign name.

Clients that are no browsers send no `Origin`, and the name by which they know the service.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from starlette.types import Scope

from service.core.errors import ForeignOrigin, KeymatchError, UnknownHost
from service.http.auth import Access, is_loopback
from service.settings import ServerSettings

SAFE_METHODS = ("GET", "HEAD")  # they change nothing
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
MOST_REMEMBERED = 64  # Host values that were accepted: a name with any port


class Sites:
    """Refuses requests with a foreign `Host`, and writes with a foreign `Origin`."""

    def __init__(self, server: ServerSettings, access: Access) -> None:
        """The names are `server.hosts`; without them, see `_names`."""
        self._accepts = _names(server, access)
        self._origins = frozenset(origin.lower().encode() for origin in server.origins)
        self._remembered: set[bytes] = set()

    def refusal(self, scope: Scope) -> KeymatchError | None:
        """Why the request is refused, None where it is not."""
        host = origin = None
        for name, value in scope["headers"]:
            if name == b"host":
                if value not in self._remembered and not self._check(value):
                    return UnknownHost("this service has another name; see its setting 'hosts'")
                host = value
            elif name == b"origin":
                origin = value.lower()
        if origin is None or scope["method"] in SAFE_METHODS or origin in self._origins:
            return None
        if host is not None and origin.partition(b"://")[2] == host.lower():
            return None
        return ForeignOrigin("a page of another site may not use this service")

    def _check(self, value: bytes) -> bool:
        if not self._accepts(_without_port(value.decode("latin-1").lower())):
            return False
        if len(self._remembered) < MOST_REMEMBERED:
            self._remembered.add(value)
        return True


def _names(server: ServerSettings, access: Access) -> Callable[[str], bool]:
    """Which names are the service's own, where no setting says it.

    - On a loopback address: the names of loopback.
    - On another address with API keys: all. A page has no key, so nothing is to be won.
    - On another address without keys, as in a container: every address, and names without a dot,
      such as those of containers. A page can have neither of them resolved to this service.
    """
    if server.hosts is not None:
        known = frozenset(host.lower() for host in server.hosts)
        return known.__contains__ if "*" not in known else lambda _name: True
    if is_loopback(server.host):
        return frozenset({*LOOPBACK_NAMES, _bracketed(server.host)}).__contains__
    if access.keys:
        return lambda _name: True
    return lambda name: "." not in name or _is_address(name)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
