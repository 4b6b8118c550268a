"""Request bodies: receives, decompresses, counts and parses them within bounds.

- All large bodies, streams and unread answers share one bound of bytes (`HeldBytes`).
- Work that takes longer than a few milliseconds runs in one thread next to the event loop
  (`SideThread`).
- gzip is decompressed only as far as needed: a body up to its limit, a stream piece by piece. A
  kilobyte of gzip can hold a megabyte.
- JSON is strictly validated (`bounded_model`).
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from time import monotonic, sleep
from typing import ParamSpec, TypeVar

import orjson
from prometheus_client import Gauge
from pydantic import BaseModel
from starlette.types import Receive, Scope

from service.core.errors import (
    BodyTooLarge,
    MalformedRequest,
    TooManyBytes,
    UnsupportedCoding,
    UnsupportedMedia,
)
from service.core.processes.quick_switches import QuickSwitches
from service.http.bounded_model import BoundedModel

RETRY_SECONDS = 5
MOST_REST = 0.1  # seconds
PIECE_BYTES = 16_384  # most bytes decompressed at once, in a fraction of a millisecond
FEW_BYTES = 1_024  # compressed bytes that the event loop decompresses itself, to at most 1 MB
MOST_MEMBERS = 1_024  # gzip members per body: a tiny member costs more than its bytes
_SLICE_BYTES = 4_096  # passed to zlib at once, which copies the rest after each member
_GZIP = (b"gzip", b"x-gzip")
_GZIP_WINDOW = 16 + zlib.MAX_WBITS  # selects the gzip format in zlib
JSON = "application/json"
NDJSON = "application/x-ndjson"
SMALL_BYTES = 16_384  # JSON up to this size is parsed in the event loop, in a millisecond
_UTF8 = ("utf-8", "utf8")

Model = TypeVar("Model", bound=BaseModel)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class HeldBytes:
    """Counts the bytes that large bodies, streams and unread answers of all requests hold.

    Each has a limit of its own, but hundreds of clients may come at once, and an unread answer
    stays in memory for `idle_seconds`. Small ones are not counted: the number of connections bounds
    them. The event loop and the `SideThread` may call this.
    """

    def __init__(self, limit: int, gauge: Gauge | None = None) -> None:
        """Let requests hold at most `limit` bytes together; `gauge` shows the present number."""
        self.total = 0
        self.limit = limit
        self._gauge, self._lock = gauge, Lock()

    def count(self, size: int, *, must: bool = True) -> bool:
        """Add `size` bytes, a negative size to subtract; returns whether they were added.

        Unless `must`, nothing is added beyond the limit.
        """
        with self._lock:
            fits = must or self.total + size <= self.limit
            if fits:
                self.total += size
                if self._gauge is not None:
                    self._gauge.set(self.total)
        return fits


class Hold:
    """The bytes reserved by one request, released after the request."""

    __slots__ = ("_all", "size")

    def __init__(self, all_held: HeldBytes) -> None:
        """Open an empty reservation."""
        self._all = all_held
        self.size = 0

    @property
    def crowded(self) -> bool:
        """Whether all requests together have reached the limit."""
        return self._all.total >= self._all.limit

    def take(self, size: int) -> bool:
        """Reserve `size` more bytes within the limit; returns whether that succeeded."""
        taken = self._all.count(size, must=False)
        if taken:
            self.size += size
        return taken

    def add(self, size: int) -> None:
        """Reserve `size` more bytes. Raises `TooManyBytes` if the limit is exceeded."""
        if not self.take(size):
            raise self.refusal()

    def refusal(self) -> TooManyBytes:
        """Return the error for a request that exceeds the limit."""
        return TooManyBytes(
            f"large requests and unread answers hold the {self._all.limit} bytes that they may"
            " take together; try again later",
            retry_after=RETRY_SECONDS,
        )

    def count(self, size: int) -> None:
        """Reserve `size` more bytes, or fewer if negative, even beyond the limit."""
        self._all.count(size)
        self.size += size

    def become(self, size: int, *, must: bool = False) -> None:
        """Reserve `size` bytes instead. Unless `must`, raises `TooManyBytes` beyond the limit."""
        if must or size <= self.size:
            self.count(size - self.size)
        else:
            self.add(size - self.size)

    def release(self) -> None:
        """Release all reserved bytes."""
        if self.size:
            self.count(-self.size)


class SideThread:
    """Runs long calls one after the other, in one thread next to the event loop.

    So large bodies delay each other, but not small ones. Parsing 4 MB of JSON holds the GIL for
    some 50 ms, while the event loop releases it whenever it reads a socket. So the thread rests
    after each call for as long as the call took, which leaves half of the time to the loop. During
    a call, threads switch quickly.
    """

    def __init__(self, switches: QuickSwitches) -> None:
        self._switches = switches
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="large")
        self._rests_until = 0.0  # by `monotonic`; used by the thread only

    async def run_if(
        self,
        large: object,
        function: Callable[Parameters, Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Call `function` in the thread if the work is `large`, otherwise directly."""
        if not large:
            return function(*arguments, **named)
        loop = asyncio.get_running_loop()
        call = partial(function, *arguments, **named)
        return await loop.run_in_executor(self._executor, self._call, call)

    def _call(self, function: Callable[[], Result]) -> Result:
        sleep(max(0.0, self._rests_until - monotonic()))
        start = monotonic()
        try:
            with self._switches.asked():
                return function()
        finally:
            end = monotonic()
            self._rests_until = end + min(end - start, MOST_REST)


def is_gzip(scope: Scope) -> bool:
    """Return whether the body is in gzip. Raises `UnsupportedCoding` for other codings."""
    codings = []
    for name, value in scope["headers"]:
        if name == b"content-encoding":
            codings += [one for part in value.split(b",") if (one := part.strip().lower())]
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise UnsupportedCoding(
                "Transfer-Encoding is not read but for 'chunked': send gzip as Content-Encoding"
            )
    if not codings or codings == [b"identity"]:
        return False
    if len(codings) == 1 and codings[0] in _GZIP:
        return True
    raise UnsupportedCoding(
        "Content-Encoding is not read but for 'gzip': send gzip, or leave the header out"
    )


class Gunzip:
    """Decompresses one body, which may consist of several gzip members."""

    def __init__(self, *, most_members: float = math.inf) -> None:
        """Refuse a body with more than `most_members` members."""
        self._most_members = most_members
        self._members = 0
        self._member: zlib._Decompress | None = None  # the member being decompressed

    def pieces(self, content: bytes) -> Iterator[bytes]:
        """Lazily decompress the next part of the body in pieces of at most `PIECE_BYTES`.

        Raises `MalformedRequest` if it is not gzip.
        """
        for start in range(0, len(content), _SLICE_BYTES):
            left = content[start : start + _SLICE_BYTES]
            while left:
                member = self._member or self._begin()
                piece = _decompressed(member, left)
                left = member.unused_data if member.eof else member.unconsumed_tail
                if piece:
                    yield piece
                while not left and not member.eof and len(piece) == PIECE_BYTES:
                    if piece := _decompressed(member, b""):  # output that zlib has kept back
                        yield piece
                if member.eof:
                    self._member = None

    def end(self) -> None:
        """Raise `MalformedRequest` if the body ends before its gzip does."""
        if self._member is not None:
            raise MalformedRequest("the body ends before its gzip does; send it as a whole")

    def _begin(self) -> zlib._Decompress:
        self._members += 1
        if self._members > self._most_members:
            raise MalformedRequest(
                f"the body has more than {self._most_members} gzip members; compress it as a whole"
            )
        self._member = member = zlib.decompressobj(_GZIP_WINDOW)
        return member


async def gunzipped(
    chunks: AsyncIterator[bytes], side_thread: SideThread
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a compressed stream; raises `MalformedRequest`.

    Only the first piece of a small chunk is decompressed here, the others in `side_thread`: a chunk
    of zeros would block the event loop for a tenth of a second.
    """
    gunzip = Gunzip()
    async for chunk in chunks:
        pieces = gunzip.pieces(chunk)
        piece = await side_thread.run_if(len(chunk) > FEW_BYTES, next, pieces, b"")
        while piece:
            yield piece
            piece = await side_thread.run_if(True, next, pieces, b"")
    gunzip.end()


def _decompressed(member: zlib._Decompress, content: bytes) -> bytes:
    try:
        return member.decompress(content, PIECE_BYTES)
    except zlib.error as error:
        raise MalformedRequest("the body is not gzip, as its Content-Encoding says") from error


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of this lower-case name, or None."""
    return next((value for known, value in scope["headers"] if known == name), None)


async def read_json(
    scope: Scope,
    receive: Receive,
    model: BoundedModel[Model],
    *,
    limit: int,
    hold: Hold,
    side_thread: SideThread,
    default: bytes = b"",
) -> Model:
    """Read and validate a JSON body of at most `limit` bytes; `default` replaces an empty body.

    A body counts by its decompressed size; one of more than `SMALL_BYTES` counts in `hold` until
    the caller releases it. Raises `UnsupportedCoding`, `UnsupportedMedia`, `BodyTooLarge`,
    `TooManyBytes`, `MalformedRequest` or `InvalidInput`.
    """
    compressed = is_gzip(scope)
    content = await _read(scope, receive, limit, hold)
    if compressed:
        large = len(content) > FEW_BYTES
        content = await side_thread.run_if(large, _gunzip, content, limit, hold)
    # Checked even without content: a foreign page can send an empty body, but not this type.
    media_type(scope, JSON)
    content = content or default
    large = len(content) > SMALL_BYTES
    return await side_thread.run_if(large, validated, model, content, what="body")


def validated(model: BoundedModel[Model], content: bytes, *, what: str) -> Model:
    """Parse and validate `content`; messages name it as `what`.

    For more than `SMALL_BYTES`, call this outside the event loop. Raises `MalformedRequest`, also
    for NaN, lone surrogates, invalid UTF-8 and deep nesting.
    """
    try:
        if len(content) <= SMALL_BYTES:
            return model.validate(orjson.loads(content))
        model.most_values.require(content, what=what)
        return model.validate_json(content)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(
            f"the {what} is not JSON in UTF-8: {error.msg} at byte {error.pos}"
        ) from error


def media_type(scope: Scope, *accepted: str) -> str:
    """Return the body's media type; raises `UnsupportedMedia` unless `accepted` and in UTF-8."""
    given = (header(scope, b"content-type") or b"").decode("latin-1")
    if given in accepted:
        return given
    kind, *parameters = (part.strip().lower() for part in given.split(";"))
    charsets = [
        value.strip('" ')
        for name, _, value in (p.partition("=") for p in parameters)
        if name.strip() == "charset"
    ]
    if kind not in accepted or any(charset not in _UTF8 for charset in charsets):
        raise UnsupportedMedia(f"send {' or '.join(accepted)} in UTF-8")
    return kind


async def _read(scope: Scope, receive: Receive, limit: int, hold: Hold) -> bytes:
    declared = header(scope, b"content-length") or b""
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLarge(f"the body has {int(declared)} bytes; at most {limit} are allowed")
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":  # the client has left; not a defect
            raise MalformedRequest("the client left before it had sent its whole body")
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise BodyTooLarge(f"the body has more than the {limit} bytes that are allowed")
        if size > SMALL_BYTES:
            hold.add(size - hold.size)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _gunzip(content: bytes, limit: int, hold: Hold) -> bytes:
    """Decompress a whole body; raises `MalformedRequest`, `BodyTooLarge` or `TooManyBytes`."""
    gunzip, body, compressed = Gunzip(most_members=MOST_MEMBERS), bytearray(), hold.size
    for piece in gunzip.pieces(content):
        body += piece
        if len(body) > limit:
            raise BodyTooLarge(f"the decompressed body has more than the {limit} allowed bytes")
        if len(body) > SMALL_BYTES:
            hold.become(compressed + len(body))
    gunzip.end()
    hold.become(len(body) if len(body) > SMALL_BYTES else 0)
    return bytes(body)
