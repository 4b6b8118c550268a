"""The exception tree of Keymatch.

    KeymatchError
    ├── InvalidInput            the caller's value is wrong: says which field and what is allowed
    │   ├── InvalidConfig       a settings file, option or environment variable
    │   ├── InvalidData         a data file: says file, line and field
    │   ├── UnknownLabels       ids in a request's fields that the memory does not hold
    │   └── UnknownLabel        a label id that the memory does not hold (or holds no more)
    ├── KeyReused               an idempotency key that came with another request before
    ├── BundleError             a bundle that must not be served; names the file
    │   ├── BundleMissing       a folder or one of its files is not there
    │   ├── BundleAltered       size or SHA-256 differ from the manifest
    │   └── BundleUnsupported   format version, index library or dimensions this build cannot serve
    ├── ParityError             an exported encoder that differs from torch beyond the tolerance
    ├── CommandFailed           a command that another one ran; it has said why itself
    ├── LogError                the label log cannot be read or written
    │   ├── LogCorrupt          a stored event fails its checksum, or the sequence has a gap
    │   └── LogLocked           another process kept the log to itself for too long
    ├── SealError               a segment or snapshot cannot be built; what is served stays
    ├── Unavailable             right now, not for ever
    │   ├── Busy                the same operation is going on already
    │   ├── NotReady            starting, draining or failed
    │   ├── MemoryFull          the configured number of live rows is reached
    │   ├── Overloaded          the queue is full; `retry_after` seconds
    │   └── DeadlineExceeded    the request's own deadline passed
    ├── RequestRefused          HTTP only: the request never reached the engine
    │   ├── MalformedRequest    the body is not JSON in UTF-8
    │   ├── Unauthenticated     no API key, or an unknown one
    │   ├── Forbidden           a known API key without the route's scope
    │   ├── BodyTooLarge        more bytes than the limit
    │   └── UnsupportedMedia    not a content type that the route reads
    └── MissingExtra            an optional dependency is absent; says how to install it

Messages are for the person who must act on them. Those of `InvalidInput` and `Unavailable` may be
sent to a client, so they hold neither paths nor internals; all others go to the log only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class KeymatchError(Exception):
    """The root of every error that this project raises on purpose."""


class InvalidInput(KeymatchError):
    """A value outside its documented range."""

    def __init__(self, message: str, *, field: str = "") -> None:
        """Keep `field`, the path of the offending value (`queries.0`), beside the message."""
        super().__init__(message)
        self.field = field


class InvalidConfig(InvalidInput):
    """A setting that is unknown or out of range; the message names file, key and allowed values."""


class InvalidData(InvalidInput):
    """A data file that does not hold what its format promises."""

    def __init__(
        self, path: Path | str, message: str, *, line: int | None = None, field: str = ""
    ) -> None:
        """Build `FILE:LINE: FIELD: message`; `line` counts from 1."""
        where = f"{path}:{line}" if line is not None else f"{path}"
        super().__init__(f"{where}: {field + ': ' if field else ''}{message}", field=field)
        self.path = Path(path)
        self.line = line


class UnknownLabel(InvalidInput):
    """No label of this id."""


class UnknownLabels(InvalidInput):
    """Several label ids that the memory does not hold, each with the field that names it."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        """Keep pairs of field and message."""
        super().__init__(f"{len(fields)} label(s) are unknown", field=fields[0][0])
        self.fields = tuple(fields)


class BundleError(KeymatchError):
    """A bundle that must not be served."""


class BundleMissing(BundleError):
    """The bundle's folder or one of its files is not there."""


class BundleAltered(BundleError):
    """A file of the bundle is not the one that was written."""


class BundleUnsupported(BundleError):
    """A whole and unaltered bundle that this build cannot serve."""


class ParityError(KeymatchError):
    """An exported encoder whose vectors or answers differ from torch beyond the tolerance."""


class CommandFailed(KeymatchError):
    """A command that another one ran ended with an error; what it wrote is kept."""


class LogError(KeymatchError):
    """The label log cannot be read or written."""


class LogCorrupt(LogError):
    """The label log holds something that was never written to it."""


class LogLocked(LogError):
    """Another process kept the label log to itself for too long."""


class SealError(KeymatchError):
    """A segment or a snapshot cannot be built."""


class KeyReused(KeymatchError):
    """An idempotency key that came with another request before."""


class Unavailable(KeymatchError):
    """Not now; the same request may succeed later."""


class Busy(Unavailable):
    """The same operation is going on already."""


class NotReady(Unavailable):
    """The service is starting, draining or has failed."""


class MemoryFull(Unavailable):
    """The memory takes no more live rows."""


class Overloaded(Unavailable):
    """More requests wait than the queue admits."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        """Keep `retry_after`, whole seconds, for the `Retry-After` header."""
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceeded(Unavailable):
    """The request's deadline passed before its answer was there."""


class RequestRefused(KeymatchError):
    """A request that never reached the engine."""


class MalformedRequest(RequestRefused):
    """The body is not what its content type says."""


class Unauthenticated(RequestRefused):
    """No API key, or one that nobody holds."""


class Forbidden(RequestRefused):
    """The API key lacks the scope."""


class BodyTooLarge(RequestRefused):
    """The body exceeds the limit."""


class UnsupportedMedia(RequestRefused):
    """The content type is not one that the route reads."""


class MissingExtra(KeymatchError):
    """An optional dependency is absent."""

    def __init__(self, package: str, *, extra: str) -> None:
        """Say which extra brings `package`."""
        super().__init__(f"{package} is not installed: pip install 'keymatch[{extra}]'")
