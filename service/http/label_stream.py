"""Labels, or changes of labels, as a stream: one per line, written in batches, answered by line.

    client -> read_lines -> BatchQueue -> apply, one batch at a time -> SendBuffer -> client

While a batch is written, the next one is read. It is written only after the first has succeeded: if
a batch fails, no later line may be written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from service.core.errors import (
    BodyTooLarge,
    KeymatchError,
    MalformedRequest,
    NotReady,
    Overloaded,
    RefusedLabels,
)
from service.core.prediction.answers import Similarity
from service.core.types import NewLabel, TypedDict, doc
from service.engine.writing.label_merge import LabelMerge
from service.engine.writing.operations import Written, WrittenLabel
from service.http import problems
from service.http.bounded_model import BoundedModel
from service.http.endpoint import Version
from service.http.ndjson import Line, read_lines
from service.http.problems import Problem
from service.http.request_body import (
    NDJSON,
    SMALL_BYTES,
    Hold,
    SideThread,
    gunzipped,
    is_gzip,
    validated,
)
from service.settings import Limits
from service.telemetry import Telemetry

BATCH_SECONDS = 0.02  # the longest that a line waits for further lines of its batch
FREE_BYTES = 262_144  # of a stream's answers, included in `STREAM_BYTES`
_PIECE_BYTES = 65_536
BATCH_LINES = 256
BATCH_BYTES = 262_144
# The most memory of a stream with short lines and few unread answers: a batch being written, one
# being read, answers, and a piece of the body.
STREAM_BYTES = 1_048_576
RETRY_SECONDS = 0.05  # between two attempts to write a batch while the writer's queue is full
LOOK_SECONDS = 0.25  # how often an idle stream checks whether the service shuts down
# Many clients send a whole stream before they read the answer. So after an early end, the rest of
# the stream is read and dropped for this long, with a pause after each piece.
LINGER_SECONDS = 5.0
LINGER_PAUSE = 0.005
PATIENCE_SECONDS = 60.0  # after which a client that does not read its answers is disconnected

log = logging.getLogger("keymatch")


class NeighbourAnswer(TypedDict):
    """A training label whose classifier enriched the vector of a posted one (IRENE)."""

    id: str
    text: str
    similarity: Similarity  # of the two labels' texts


class LabelStatus(TypedDict):
    """What the service did with one posted label."""

    id: Annotated[str, doc("As posted; without one, that of the label of this text.")]
    status: Annotated[str, doc("`created`, `updated` or `unchanged`.")]
    neighbours: Annotated[
        list[NeighbourAnswer], doc("At most 3; empty for a bundle without a combiner.")
    ]


class MergeAnswer(LabelStatus):
    """The answer of PATCH /labels/{label_id}."""

    version: Version


class LineAnswer(MergeAnswer):
    """The answer to a line of a stream whose label was written."""

    line: Annotated[int, doc("Number of the line, from 1.")]


class LineRefusal(TypedDict):
    """The answer to a line of a stream that was not written; other lines are not affected."""

    line: Annotated[int, doc("Number of the line, from 1.")]
    error: Problem


class StreamEnd(TypedDict):
    """The last line of the answer to a stream that the service ended early."""

    stopped_after: Annotated[
        int, doc("Lines up to this number are answered above; no later line was written.")
    ]
    error: Problem


def json_lines(documents: Iterable[Mapping[str, Any]]) -> bytes:
    """Return documents as newline-delimited JSON."""
    return b"".join(
        orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE) for document in documents
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A line that was read: its label or change, or the problem with the line."""

    line: int  # its number
    size: int  # bytes
    held: int = 0  # bytes counted for it in the stream's reservation
    label: NewLabel | LabelMerge | None = None
    problem: Problem | None = None


class BatchQueue:
    """A queue between one task that puts and one that takes, on the same event loop."""

    def __init__(self, *, size: int) -> None:
        """Create a queue; a batch is full once it has `BATCH_LINES` lines or `size` bytes."""
        self._size = size
        self._entries: list[Entry] = []
        self._held_bytes = 0
        self._oldest = 0.0  # loop time at which the oldest entry was put
        self._ended = False
        self.closed = False
        self._arrived, self._full, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()

    @property
    def finished(self) -> bool:
        """Whether the queue is empty and no line will come."""
        return self._ended and not self._entries

    async def put(self, entry: Entry) -> None:
        """Add a line, once the batch is not full. A closed queue drops the line."""
        await self._room.wait()
        if self.closed:
            return
        if not self._entries:
            self._oldest = asyncio.get_running_loop().time()
        self._entries.append(entry)
        self._held_bytes += entry.size
        self._arrived.set()
        if len(self._entries) >= BATCH_LINES or self._held_bytes >= self._size:
            self._full.set()
            self._room.clear()

    async def take(self, *, within: float) -> list[Entry]:
        """Return the next batch: a full one, or the lines of the last `BATCH_SECONDS`.

        The time starts with the oldest line, so no line waits longer. The batch is empty if no line
        came for `within` seconds.
        """
        await _wait(self._arrived, within)
        if self._entries:
            waited = asyncio.get_running_loop().time() - self._oldest
            await _wait(self._full, BATCH_SECONDS - waited)
        batch, self._entries, self._held_bytes = self._entries, [], 0
        if not self._ended:
            self._arrived.clear()
            self._full.clear()
            self._room.set()
        return batch

    def end(self) -> None:
        """Declare that no further line will come; queued lines can still be taken."""
        self._ended = True
        for event in (self._arrived, self._full, self._room):
            event.set()

    def close(self) -> None:
        """Drop all queued and future lines."""
        self.closed = True
        self._entries = []
        self.end()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Return once the event is set, or after `seconds`."""
    if not event.is_set() and seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


class SendBuffer:
    """Takes bytes without waiting, and sends them as fast as the client reads."""

    def __init__(self, send: Send, *, limit: int, patience: float, hold: Hold) -> None:
        """Send by `send`, after the head of the answer.

        The buffer is full at `limit` bytes, or at `FREE_BYTES` while all requests together hold as
        much as they may. Bytes beyond `FREE_BYTES` count in `hold`. `room` and `finish` raise once
        the client has read nothing for `patience` seconds.
        """
        self._send, self._limit, self._patience, self._hold = send, limit, patience, hold
        self._pieces: deque[bytes] = deque()
        self._held_bytes = 0
        self._started = self._ended = self._sent = False
        self._written, self._progressed = asyncio.Event(), asyncio.Event()

    def write(self, content: bytes) -> None:
        """Add bytes, even beyond the limit: the caller waits for `room` before each write."""
        for place in range(0, len(content), _PIECE_BYTES):
            self._pieces.append(content[place : place + _PIECE_BYTES])
        self._hold_bytes(self._held_bytes + len(content))
        self._written.set()

    async def room(self) -> None:
        """Wait while the buffer is full; raises `TimeoutError` once the patience is over."""
        crowded_limit = min(self._limit, FREE_BYTES)
        await self._until(
            lambda: self._held_bytes < (crowded_limit if self._hold.crowded else self._limit)
        )

    async def finish(self) -> None:
        """End the answer and wait until it is sent. Raises `TimeoutError` as `room` does."""
        self._ended = True
        self._written.set()
        await self._until(lambda: self._sent)

    async def run(self) -> None:
        """Send written pieces to the client until the answer is complete; run it as a task."""
        while self._pieces or not self._ended:
            if self._pieces:
                piece = self._pieces.popleft()
                await self._send_body(piece, more_body=True)
                self._hold_bytes(self._held_bytes - len(piece))
                self._progressed.set()
            else:
                self._written.clear()
                await self._written.wait()
        await self._send_body(b"", more_body=False)
        self._sent = True
        self._progressed.set()

    def _hold_bytes(self, size: int) -> None:
        counted = max(0, self._held_bytes - FREE_BYTES)
        self._held_bytes = size
        change = max(0, size - FREE_BYTES) - counted
        if change:
            self._hold.count(change)

    async def _send_body(self, body: bytes, *, more_body: bool) -> None:
        if not self._started:
            self._started = True
            # After an early end, part of the body is unread, so the connection ends.
            headers = [(b"connection", b"close"), (b"content-type", NDJSON.encode())]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._progressed.clear()
            async with asyncio.timeout(self._patience):
                await self._progressed.wait()


@dataclass(kw_only=True)
class LabelStream:
    """The answer to a stream of labels or changes, an ASGI application that sends while it reads.

    A `StreamingResponse` would call `receive()` to detect disconnects, and so consume the body that
    is read here.
    """

    model: BoundedModel[Any]  # of a line
    read: Callable[[Any], NewLabel | LabelMerge]  # returns the label or change of a line's body
    side_thread: SideThread
    apply: Callable[[Sequence[Any]], Awaitable[Written]]  # writes what was read, all or none
    status: Callable[[WrittenLabel], LabelStatus]  # returns what was done with a written label
    draining: Callable[[], bool]  # returns whether the service shuts down
    limits: Limits
    telemetry: Telemetry
    hold: Hold  # already counts `STREAM_BYTES`
    patience: float = PATIENCE_SECONDS  # see `SendBuffer`
    client_left: bool = field(default=False, init=False)
    malformed: Problem | None = field(default=None, init=False)  # why no further line can be read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, write and answer until the stream ends, fails or the service shuts down."""
        batches = BatchQueue(size=min(BATCH_BYTES, self.limits.body_bytes))
        answers = SendBuffer(
            send,
            limit=self.limits.stream_answer_bytes,
            patience=self.patience,
            hold=self.hold,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(answers.run())
                reading = tasks.create_task(self._read(Request(scope, receive), batches))
                await self._answer_all(batches, answers)
                await asyncio.wait({reading}, timeout=LINGER_SECONDS)
                reading.cancel()
                if self.client_left:
                    sending.cancel()
                else:
                    await answers.finish()
        except* TimeoutError:
            log.warning("a stream of labels is given up: its client does not read the answers")

    async def _read(self, request: Request, batches: BatchQueue) -> None:
        try:
            body = chunks = request.stream()
            if is_gzip(request.scope):
                chunks = gunzipped(body, self.side_thread)
            lines = read_lines(chunks, limit=self.limits.body_bytes, hold=self.hold)
            async for line in lines:
                if batches.closed:
                    self.hold.count(-line.held)
                    break
                await batches.put(await self._entry(line))
            if batches.closed:
                async for _ in body:
                    await asyncio.sleep(LINGER_PAUSE)
        except ClientDisconnect:
            self.client_left = True
            batches.close()
        except MalformedRequest as error:  # earlier lines stay written
            self.malformed = problems.error_document(error)
            batches.end()
        else:
            batches.end()

    async def _entry(self, line: Line) -> Entry:
        label, problem = None, None
        try:
            label = await self._label(line)
        except KeymatchError as error:
            problem = problems.error_document(error, whole="line")
            problems.forget_frames(error)
        size = len(line.content or b"")
        return Entry(line=line.number, size=size, held=line.held, label=label, problem=problem)

    async def _label(self, line: Line) -> NewLabel | LabelMerge:
        if line.content is None:
            if line.crowded:
                raise self.hold.refusal()
            limit = self.limits.body_bytes
            raise BodyTooLarge(f"the line has more than the {limit} bytes that are allowed")
        return await self.side_thread.run_if(
            len(line.content) > SMALL_BYTES,
            lambda content: self.read(validated(self.model, content, what="line")),
            line.content,
        )

    async def _answer_all(self, batches: BatchQueue, answers: SendBuffer) -> None:
        """Write batch after batch and answer its lines; report where a failure stopped it."""
        last, failure = 0, None
        while failure is None and not batches.finished:
            await answers.room()
            if self.draining():
                failure = problems.error_document(_shutting_down())
            elif batch := await batches.take(within=LOOK_SECONDS):
                documents, failure = await self._answers(batch)
                self.hold.count(-sum(entry.held for entry in batch))
                answers.write(json_lines(documents))
                last = batch[-1].line
        failure = failure or self.malformed
        if failure is not None:
            batches.close()
            answers.write(json_lines([StreamEnd(stopped_after=last, error=failure)]))

    async def _answers(
        self, batch: Sequence[Entry]
    ) -> tuple[list[LineAnswer | LineRefusal], Problem | None]:
        """Write a batch; return each line's answer, and the problem if the batch failed."""
        while True:
            try:
                written = await self._write([entry.label for entry in batch if entry.label])
                break
            except RefusedLabels as error:  # the other lines are not affected
                batch = _without_refused(batch, error)
            except Exception as error:  # after a defect, too, every line must be answered
                problems.count(error, self.telemetry)
                failure = problems.error_document(error)
                problems.forget_frames(error)
                refused = [LineRefusal(line=e.line, error=e.problem or failure) for e in batch]
                return [*refused], failure
        written_labels = iter(written.labels)
        return [
            LineRefusal(line=entry.line, error=entry.problem)
            if entry.problem
            else {
                "line": entry.line,
                **self.status(next(written_labels)),
                "version": written.version,
            }
            for entry in batch
        ], None

    async def _write(self, labels: Sequence[NewLabel | LabelMerge]) -> Written:
        """Write labels as soon as the writer's queue has room for them."""
        if not labels:
            return Written(version=0, labels=())
        while True:
            try:
                return await self.apply(labels)
            except Overloaded:
                if self.client_left:
                    raise
                if self.draining():
                    raise _shutting_down() from None
                await asyncio.sleep(RETRY_SECONDS)


def _without_refused(batch: Sequence[Entry], error: RefusedLabels) -> list[Entry]:
    """Return a batch in which the refused labels are problems of their lines."""
    left = list(batch)
    sent = [place for place, entry in enumerate(batch) if entry.label]
    for number, refusal in error.errors.items():
        document = problems.error_document(refusal, whole="line")
        left[sent[number]] = replace(left[sent[number]], label=None, problem=document)
    return left


def _shutting_down() -> NotReady:
    return NotReady("the service shuts down; send the lines that were not written again")
