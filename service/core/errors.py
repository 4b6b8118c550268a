"""The exception tree of Keymatch.

    KeymatchError
    ├── InvalidInput
    │   ├── AnswerTooLarge, InvalidConfig, OtherData, NotInBundle
    │   ├── UnknownLabel, UnknownItem, UnknownRule
    │   ├── InvalidData ── Unwritable
    │   └── InvalidFields: UnknownLabels, RefusedLabels
    ├── BundleError
    │   ├── BundleMissing ── UnknownBundle
    │   ├── StoreError ── StoreUnreachable
    │   └── BundleAltered, BundleUnsupported
    ├── LogError: LogCorrupt, LogCut, LogReplaced, LogLocked
    ├── SealError: SealLate, BundlesUnwritable
    ├── Unavailable
    │   ├── Busy, Cancelled, NotReady, ShardsUnavailable, MemoryFull, DeadlineExceeded, ClientLeft
    │   └── Overloaded: DelayExceeded, TooManyBytes
    ├── RequestRefused
    │   ├── MalformedHttp, UnknownHost, ForeignOrigin, HeaderTooLarge, TooSlow, MalformedRequest
    │   ├── TooManyConnections, Forbidden, BodyTooLarge
    │   ├── Unauthenticated ── InvalidToken
    │   └── UnsupportedMedia ── UnsupportedCoding
    ├── KeyReused, ParityError, Diverged, CommandFailed, DeviceUnavailable
    └── MissingExtra, NotCompiled

A message is written for the person who must act on it. Messages of `InvalidInput` and `Unavailable`
may be sent to a client, so they contain neither paths nor internals. Those of `StoreError` may be
sent to an operator. All others are only logged. If a message repeats a part of the request, that
part is cut (`echoed`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

ECHOED_CHARACTERS = 100


def echoed(text: str) -> str:
    """Return `text` in quotation marks, cut: long input must not make a message long."""
    return repr(text if len(text) <= ECHOED_CHARACTERS else text[:ECHOED_CHARACTERS] + "…")


class KeymatchError(Exception):
    """The base class of every error that this project raises deliberately."""


class InvalidInput(KeymatchError):
    """A value is not what its documentation allows."""

    def __init__(self, message: str, *, field: str = "") -> None:
        """Keep the message and `field`, the path of the wrong value (such as `queries.0`)."""
        super().__init__(message)
        self.field = field


class DatePassed(InvalidInput):
    """An `expires_at` has passed. A request that was answered before still gets its answer."""


class AnswerTooLarge(InvalidInput):
    """The answer would have more bytes than are allowed."""


class InvalidConfig(InvalidInput):
    """A setting is unknown or out of range; the message names source, key and allowed values."""


class OtherData(InvalidInput):
    """The label log belongs to other data than the bundle's, and nobody has allowed that."""


class InvalidData(InvalidInput):
    """A data file does not match its format."""

    def __init__(
        self, path: Path | str, message: str, *, line: int | None = None, field: str = ""
    ) -> None:
        """Build `FILE:LINE: FIELD: message`; `line` counts from 1. `reason` is the bare message."""
        where = f"{path}:{line}" if line is not None else f"{path}"
        super().__init__(f"{where}: {field + ': ' if field else ''}{message}", field=field)
        self.path = Path(path)
        self.line = line
        self.reason = message


class Unwritable(InvalidData):
    """A file or folder cannot be written: the disk is full, read-only, or the path is taken."""

    def __init__(self, path: Path | str, cause: str) -> None:
        """Name the path and the `cause` that the system gave."""
        super().__init__(path, f"cannot be written: {cause}")
        self.cause = cause


class UnknownLabel(InvalidInput):
    """The memory holds no label with this id: it never did, or the label was deleted."""


class UnknownItem(InvalidInput):
    """The item memory holds no item with this id: it never did, or the item was deleted."""


class UnknownRule(InvalidInput):
    """There is no rule with this id: there never was, or it was deleted."""


class NotInBundle(InvalidInput):
    """The bundle lacks a part that the request needs: an item memory or a reranker."""

    def __init__(self, part: str, *, field: str) -> None:
        """Name the part, and the field that needs it."""
        super().__init__(f"the bundle that is served has no {part}", field=field)


class InvalidFields(InvalidInput):
    """Several fields of a request are not what their documentation allows."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        """Keep `fields`, pairs of a field's path and the message about it."""
        super().__init__(f"{len(fields)} field(s) are invalid", field=fields[0][0])
        self.fields = tuple(fields)


class UnknownLabels(InvalidFields):
    """The memory has no label for some ids in a request."""


class RefusedLabels(InvalidFields):
    """Some labels of a request cannot be changed as it says; `errors` has one for each place."""

    def __init__(self, errors: Mapping[int, InvalidInput]) -> None:
        """Keep `errors` by the place of the label in the request; there is one or more."""
        super().__init__([(f"labels.{place}.{e.field}", str(e)) for place, e in errors.items()])
        self.errors = errors


class BundleError(KeymatchError):
    """A bundle cannot be served.

    `shown` is what an operator may read of the message: it names no folders of the machine.
    """

    shown = ""


class BundleMissing(BundleError):
    """The bundle's folder or one of its files does not exist."""


class UnknownBundle(BundleMissing):
    """There is no bundle of this name in the folder of bundles, or at this URL."""


class StoreError(BundleError):
    """An object store refuses a request. The message names the URL, and no credentials."""


class StoreUnreachable(StoreError):
    """An object store does not answer now."""


class BundleAltered(BundleError):
    """A file of the bundle differs from the one that was written."""


class BundleUnsupported(BundleError):
    """The bundle is complete and unaltered, but uses something that this version lacks."""


class ParityError(KeymatchError):
    """The vectors or answers of an exported encoder differ from torch's beyond the tolerance."""


class Diverged(KeymatchError):
    """The loss or gradient of a training step is not finite, so further steps are useless."""

    def __init__(self, reason: str, *, advice: str) -> None:
        """Keep `reason` (what happened, and where) and add `advice` to the message."""
        super().__init__(f"{reason}; {advice}")
        self.reason = reason


class CommandFailed(KeymatchError):
    """A command that another command ran has failed. Files that it wrote are kept."""


class LogError(KeymatchError):
    """The label log cannot be read or written."""


class LogCorrupt(LogError):
    """The label log has lost an event, or holds one that was altered."""


class LogCut(LogError):
    """Needed events were cut from the beginning of the log; a snapshot holds them."""


class LogReplaced(LogError):
    """The log is not the one that was opened: its file was replaced, or known events are gone."""


class LogLocked(LogError):
    """Another process held the log's lock for too long."""


class SealError(KeymatchError):
    """A segment or a snapshot cannot be built. The memory that is served is unchanged."""


class SealLate(SealError):
    """A child process was killed because it exceeded its time limit."""


class BundlesUnwritable(SealError):
    """No snapshot can be written to the folder of `--bundles`. The message gives no path."""

    def __init__(self, cause: str) -> None:
        """Name the `cause` that the system gave, and what to do."""
        super().__init__(
            f"the folder of bundles cannot be written: {cause}; start the service with --bundles"
            " and a folder that it may write to, on a disk with free space"
        )


class KeyReused(KeymatchError):
    """An idempotency key was used for a different request within the last day."""


class Unavailable(KeymatchError):
    """The request cannot be answered now; the same request may succeed later."""


class Busy(Unavailable):
    """The same operation is already running."""


class Cancelled(Unavailable):
    """The operation was canceled on request; nothing was changed."""


class NotReady(Unavailable):
    """The service is starting, draining or has failed."""


class ShardsUnavailable(Unavailable):
    """A shard of the memory does not answer, so some of the nearest rows are unknown."""


class MemoryFull(Unavailable):
    """The configured number of live rows is reached."""


class Overloaded(Unavailable):
    """The queue is full: no more requests may wait."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        """Keep the message, and `retry_after` (whole seconds) for the `Retry-After` header."""
        super().__init__(message)
        self.retry_after = retry_after


class DelayExceeded(Overloaded):
    """The queue is overloaded: the request would wait, or has waited, longer than allowed."""


class TooManyBytes(Overloaded):
    """Large requests and unread answers together hold as many bytes as they may."""


class ClientLeft(Unavailable):
    """The client disconnected before its request was answered."""


class DeadlineExceeded(Unavailable):
    """The request's deadline passed before it was answered."""


class RequestRefused(KeymatchError):
    """The HTTP layer refused a request before it reached the engine."""


class MalformedHttp(RequestRefused):
    """The bytes on a connection are not HTTP, so the next request cannot be found in them."""


class UnknownHost(RequestRefused):
    """The request's `Host` is not a name of this service."""


class ForeignOrigin(RequestRefused):
    """A web page of another site sent a request that may change something."""


class HeaderTooLarge(RequestRefused):
    """The request line and the header fields are larger than the limit."""


class TooSlow(RequestRefused):
    """The header or the body did not arrive within its time limit."""


class TooManyConnections(RequestRefused):
    """The limit of connections is reached; a few more are reserved for probes."""


class MalformedRequest(RequestRefused):
    """The body does not match its content type."""


class Unauthenticated(RequestRefused):
    """The API key is missing or unknown."""


class InvalidToken(Unauthenticated):
    """The JSON Web Token is malformed, has expired, or is not for this service."""


class Forbidden(RequestRefused):
    """The API key or token lacks the scope that the route needs."""


class BodyTooLarge(RequestRefused):
    """The body is larger than the limit."""


class UnsupportedMedia(RequestRefused):
    """The route does not read this content type."""


class UnsupportedCoding(UnsupportedMedia):
    """The body is compressed with a method that the service does not read."""


class DeviceUnavailable(KeymatchError):
    """The device that the settings name cannot be used on this machine."""


class MissingExtra(KeymatchError):
    """An optional package is not installed."""

    def __init__(self, package: str, *, extra: str) -> None:
        """Name the package and the extra of keymatch that installs it."""
        super().__init__(f"{package} is not installed: {install_command(extra)}")


class NotCompiled(KeymatchError):
    """A compiled library is missing or another version's. Only checkouts have to build it."""

    def __init__(self, library: str) -> None:
        """Name the library and the command that builds it."""
        super().__init__(
            f"{library} of this version was not built: in keymatch's checkout, pip install -e ."
        )


def install_command(extra: str) -> str:
    """Return what installs an extra of keymatch, from where keymatch itself was installed.

    `direct_url.json` (PEP 610) tells a checkout's folder, or a wheel's file; without it, keymatch
    came from an index. A package index may not have keymatch, or have another version of it.
    """
    try:
        origin = json.loads(distribution("keymatch").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {"dir_info": {}}  # run from a folder that was never installed
    if "dir_info" in origin:
        return f"in keymatch's checkout, pip install '.[{extra}]'"
    wheel = unquote(urlsplit(origin["url"]).path).rpartition("/")[2] if "url" in origin else ""
    return f"pip install '{wheel or 'keymatch'}[{extra}]'"
