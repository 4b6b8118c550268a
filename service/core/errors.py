"""The exception tree of Keymatch.

    KeymatchError
    ├── InvalidInput            a value is wrong; names the field and what is allowed
    │   ├── AnswerTooLarge      the answer would have more bytes than are allowed
    │   ├── InvalidConfig       in a settings file, an option or an environment variable
    │   ├── OtherData           the label log was begun for other data than the bundle's
    │   ├── InvalidData         in a data file; names file, line and field
    │   ├── UnknownLabel        the memory holds no label with this id
    │   ├── UnknownItem         the item memory holds no item with this id
    │   ├── NotInBundle         the bundle has no item memory, or no second ranking
    │   └── InvalidFields       several fields of one request are wrong
    │       └── UnknownLabels   the memory holds no label for these ids
    ├── KeyReused               an idempotency key was used before for a different request
    ├── BundleError             a bundle cannot be served; names the file
    │   ├── BundleMissing       the folder or one of its files does not exist
    │   ├── BundleAltered       a file's size or SHA-256 differs from the manifest
    │   └── BundleUnsupported   its format, index library or dimension is unknown to this version
    ├── ParityError             an exported encoder's output differs from torch's too much
    ├── CommandFailed           a command run by another command failed and printed the reason
    ├── LogError                the label log cannot be read or written
    │   ├── LogCorrupt          an event has a wrong checksum, or the sequence has a gap
    │   ├── LogCut              needed events were cut; a snapshot holds them
    │   ├── LogReplaced         the log is not the one that was opened: its file or events differ
    │   └── LogLocked           another process held the log's lock for too long
    ├── SealError               a segment or snapshot cannot be built; serving goes on
    │   └── SealLate            its child process was not done in time, and was killed
    ├── Unavailable             the request cannot be answered now, but perhaps later
    │   ├── Busy                the same operation is already running
    │   ├── NotReady            the service is starting, draining or has failed
    │   ├── MemoryFull          the configured number of live rows is reached
    │   ├── Overloaded          the queue is full; retry after `retry_after` seconds
    │   │   ├── DelayExceeded   the queue would take, or took, longer than is useful
    │   │   └── TooManyBytes    large requests and unread answers hold all they may
    │   ├── DeadlineExceeded    the request's deadline has passed
    │   └── ClientLeft          the client disconnected; nobody reads the answer
    ├── RequestRefused          the HTTP layer refused the request
    │   ├── MalformedHttp       the request is not HTTP
    │   ├── UnknownHost         the request's Host is no name of this service
    │   ├── ForeignOrigin       a web page of another site has sent the request
    │   ├── HeaderTooLarge      the request's header is larger than the limit
    │   ├── TooSlow             the request did not come within its time
    │   ├── TooManyConnections  the service holds as many connections as it may
    │   ├── MalformedRequest    the body is not JSON in UTF-8
    │   ├── Unauthenticated     the API key is missing or unknown
    │   ├── Forbidden           the API key lacks the scope that the route needs
    │   ├── BodyTooLarge        the body is larger than the limit
    │   └── UnsupportedMedia    the route does not read this content type
    ├── DeviceUnavailable       the configured device, or software that it needs, is missing
    └── MissingExtra            an optional package is not installed; says how to install it

A message is written for the person who must act on it. Messages of `InvalidInput` and `Unavailable`
may be sent to a client, so they contain neither paths nor internals; all others are only logged.
What they repeat of a request is cut (`echoed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ECHOED_CHARACTERS = 100


def echoed(text: str) -> str:
    """`text` in quotation marks, cut: a message must not grow with what a client has sent."""
    return repr(text if len(text) <= ECHOED_CHARACTERS else text[:ECHOED_CHARACTERS] + "…")


class KeymatchError(Exception):
    """The base class of every error that this project raises deliberately."""


class InvalidInput(KeymatchError):
    """A value is not what its documentation allows."""

    def __init__(self, message: str, *, field: str = "") -> None:
        """Keep the message and `field`, the path of the wrong value (`queries.0`)."""
        super().__init__(message)
        self.field = field


class AnswerTooLarge(InvalidInput):
    """The answer would have more bytes than are allowed."""


class InvalidConfig(InvalidInput):
    """A setting is unknown or out of range; the message names source, key and allowed values."""


class OtherData(InvalidInput):
    """The label log was begun for other data than the bundle's, and nobody has allowed that."""


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


class UnknownLabel(InvalidInput):
    """The memory holds no label with this id: it never did, or the label was deleted."""


class UnknownItem(InvalidInput):
    """The item memory holds no item with this id: it never did, or the item was deleted."""


class NotInBundle(InvalidInput):
    """The bundle lacks a part that the request needs: an item memory, or a second ranking."""

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
    """The memory holds no label for some ids of a request."""


class BundleError(KeymatchError):
    """A bundle cannot be served."""


class BundleMissing(BundleError):
    """The bundle's folder or one of its files does not exist."""


class UnknownBundle(BundleMissing):
    """No bundle of this name stands beside the one that is served; the message lists those."""


class BundleAltered(BundleError):
    """A file of the bundle differs from the one that was written."""


class BundleUnsupported(BundleError):
    """A complete and unaltered bundle uses something that this version does not support."""


class ParityError(KeymatchError):
    """An exported encoder's vectors or answers differ from torch's by more than the tolerance."""


class CommandFailed(KeymatchError):
    """A command that was run by another command failed; files that it wrote are kept."""


class LogError(KeymatchError):
    """The label log cannot be read or written."""


class LogCorrupt(LogError):
    """The label log has lost an event, or holds one that was altered."""


class LogCut(LogError):
    """Events that are needed were cut from the log's beginning; a snapshot holds them."""


class LogReplaced(LogError):
    """The log is not the one that was opened: its file was replaced, or known events are gone."""


class LogLocked(LogError):
    """Another process held the log's lock for too long."""


class SealError(KeymatchError):
    """A segment or a snapshot cannot be built; the memory that is served is unchanged."""


class SealLate(SealError):
    """A child process was killed because it took longer than it was given."""


class KeyReused(KeymatchError):
    """An idempotency key was used within a day for a different request."""


class Unavailable(KeymatchError):
    """The request cannot be answered now; the same request may succeed later."""


class Busy(Unavailable):
    """The same operation is already running."""


class Cancelled(Unavailable):
    """Somebody asked that the operation be given up; nothing was changed."""


class NotReady(Unavailable):
    """The service is starting, draining or has failed."""


class MemoryFull(Unavailable):
    """The configured number of live rows is reached."""


class Overloaded(Unavailable):
    """The queue is full; as many requests wait as are allowed to."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        """Keep the message and `retry_after`, whole seconds, for the `Retry-After` header."""
        super().__init__(message)
        self.retry_after = retry_after


class DelayExceeded(Overloaded):
    """More arrives than is answered, and the request would wait, or has waited, for too long."""


class TooManyBytes(Overloaded):
    """All large requests and unread answers together hold as many bytes as they may."""


class ClientLeft(Unavailable):
    """The client disconnected before its request was answered."""


class DeadlineExceeded(Unavailable):
    """The request's deadline passed before it was answered."""


class RequestRefused(KeymatchError):
    """The HTTP layer refused a request, which did not reach the engine."""


class MalformedHttp(RequestRefused):
    """What came over the connection is not HTTP, so nobody can tell where the next request is."""


class UnknownHost(RequestRefused):
    """The request's Host is no name of this service."""


class ForeignOrigin(RequestRefused):
    """A web page of another site has sent a request that may change something."""


class HeaderTooLarge(RequestRefused):
    """The request line and the header fields are larger than the limit."""


class TooSlow(RequestRefused):
    """The header or the body did not come within the time that it may take."""


class TooManyConnections(RequestRefused):
    """The service holds as many connections as it may; the few more are for probes."""


class MalformedRequest(RequestRefused):
    """The body does not match its content type."""


class Unauthenticated(RequestRefused):
    """The API key is missing or unknown."""


class Forbidden(RequestRefused):
    """The API key lacks the scope that the route needs."""


class BodyTooLarge(RequestRefused):
    """The body is larger than the limit."""


class UnsupportedMedia(RequestRefused):
    """The route does not read this content type."""


class DeviceUnavailable(KeymatchError):
    """The device that the settings name cannot be used on this machine."""


class MissingExtra(KeymatchError):
    """An optional package is not installed."""

    def __init__(self, package: str, *, extra: str) -> None:
        """Name the package, and the extra of keymatch that installs it."""
        super().__init__(f"{package} is not installed: pip install 'keymatch[{extra}]'")
