"""POST /labels as a stream: one label per line, written in batches, answered line by line.

    client -> read_lines -> BatchQueue -> apply, one batch at a time -> SendBuffer -> client

While a batch is written, the next one is read. It is passed on only after the first has succeeded:
if a batch fails, no later line may be written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.core.errors import BodyTooLarge, KeymatchError, NotReady, Overloaded
from service.core.types import NewLabel
from service.engine.writing.written import Written
from service.http import problems
from service.http.answers import LineAnswer, LineRefusal
from service.http.bounded_model import BoundedModel
from service.http.large.held_bytes import Hold
from service.http.problems import Problem
from service.http.request_body import NDJSON, SMALL_BYTES, validated
from service.http.request_models.labels import LabelBody
from service.http.responses import json_lines, line_answer, line_refusal, stream_end
from service.http.side_thread import SideThread
from service.http.streaming.batch_queue import BatchQueue, Entry
from service.http.streaming.ndjson import Line, read_lines
from service.http.streaming.send_buffer import SendBuffer
from service.settings import Limits
from service.telemetry import Telemetry

BATCH_LINES = 256
BATCH_BYTES = 262_144
# What a stream holds at most as long as its lines and its unread answers are short: a batch that is
# written, one that is read, answers, and a piece of the body.
STREAM_BYTES = 1_048_576
RETRY_SECONDS = 0.05  # between two attempts to write a batch while the writer's queue is full
LOOK_SECONDS = 0.25  # how often an idle stream checks whether the service shuts down
# Closing a connection while bytes still arrive resets it, and the client may lose the last lines of
# its answer. So after an early end the rest of the stream is read and dropped for this long.
LINGER_SECONDS = 5.0
PATIENCE_SECONDS = 60.0  # after which a client that does not read its answers is given up

Apply = Callable[[Sequence[NewLabel]], Awaitable[Written]]

log = logging.getLogger("keymatch")


class LabelStream(Response):
    """The answer to a stream of labels, sent while the stream is read.

    Not a `StreamingResponse`, which detects disconnects through `receive()` and would thereby
    consume the body that is read here.
    """

    media_type = NDJSON

    def __init__(
        self,
        *,
        model: type[LabelBody],
        side_thread: SideThread,
        apply: Apply,
        draining: Callable[[], bool],
        limits: Limits,
        telemetry: Telemetry,
        hold: Hold,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`apply` writes labels, all or none; `draining` tells whether the service shuts down.

        `patience` is in seconds, see `SendBuffer`; `hold` holds `STREAM_BYTES` already.
        """
        self.status_code, self.background = 200, None
        # After an early end the rest of the body is unread, so no request can follow on this
        # connection.
        self.init_headers({"connection": "close"})
        self._model, self._side_thread = BoundedModel(model), side_thread
        self._apply, self._draining = apply, draining
        self._limits, self._telemetry = limits, telemetry
        self._patience, self._hold = patience, hold
        self._client_left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, write and answer until the stream ends, fails or the service shuts down."""
        batches = BatchQueue(lines=BATCH_LINES, size=min(BATCH_BYTES, self._limits.body_bytes))
        answers = SendBuffer(
            send,
            start={
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            },
            limit=self._limits.stream_answer_bytes,
            patience=self._patience,
            hold=self._hold,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(answers.run())
                reading = tasks.create_task(self._read(Request(scope, receive), batches))
                await self._answer_all(batches, answers)
                await asyncio.wait({reading}, timeout=LINGER_SECONDS)
                reading.cancel()
                if self._client_left:
                    sending.cancel()
                else:
                    await answers.finish()
        except* TimeoutError:
            log.warning("a stream of labels is given up: its client does not read the answers")

    async def _read(self, request: Request, batches: BatchQueue) -> None:
        try:
            lines = read_lines(request.stream(), limit=self._limits.body_bytes, hold=self._hold)
            async for line in lines:
                if not batches.closed:
                    await batches.put(await self._entry(line))
                elif line.held:
                    self._hold.count(-line.held)
        except ClientDisconnect:
            self._client_left = True
            batches.close()
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

    async def _label(self, line: Line) -> NewLabel:
        if line.content is None:
            if line.crowded:
                raise self._hold.refusal()
            limit = self._limits.body_bytes
            raise BodyTooLarge(f"the line has more than the {limit} bytes that are allowed")
        if len(line.content) <= SMALL_BYTES:
            return self._parsed(line.content)
        return await self._side_thread.run(self._parsed, line.content)

    def _parsed(self, content: bytes) -> NewLabel:
        return validated(self._model, content, what="line").to_label()

    async def _answer_all(self, batches: BatchQueue, answers: SendBuffer) -> None:
        """Write batch after batch and answer its lines; after a failure, say where it stopped."""
        last, failure = 0, None
        while failure is None and not batches.finished:
            await answers.room()
            if self._draining():
                failure = problems.error_document(_shutting_down())
            elif batch := await batches.take(within=LOOK_SECONDS):
                documents, failure = await self._answers(batch)
                self._hold.count(-sum(entry.held for entry in batch))
                answers.write(json_lines(documents))
                last = batch[-1].line
        if failure is not None:
            batches.close()
            answers.write(json_lines([stream_end(last, failure)]))

    async def _answers(
        self, batch: Sequence[Entry]
    ) -> tuple[list[LineAnswer | LineRefusal], Problem | None]:
        """Write a batch; the answer to each of its lines, and the problem if it was not written."""
        try:
            written = await self._write([entry.label for entry in batch if entry.label])
        except Exception as error:  # also after a defect every line must be answered
            failure = self._failure(error)
            problems.forget_frames(error)
            return [line_refusal(entry.line, entry.problem or failure) for entry in batch], failure
        written_labels = iter(written.labels)
        return [
            line_refusal(entry.line, entry.problem)
            if entry.problem
            else line_answer(entry.line, next(written_labels), version=written.version)
            for entry in batch
        ], None

    async def _write(self, labels: Sequence[NewLabel]) -> Written:
        """Write labels as soon as the writer's queue has room for them."""
        if not labels:
            return Written(version=0, labels=())
        while True:
            try:
                return await self._apply(labels)
            except Overloaded:
                if self._client_left:
                    raise
                if self._draining():
                    raise _shutting_down() from None
                await asyncio.sleep(RETRY_SECONDS)

    def _failure(self, error: Exception) -> Problem:
        reason = problems.reason(error)
        if reason:
            self._telemetry.rejected.labels(reason).inc()
        return problems.error_document(error)


def _shutting_down() -> NotReady:
    return NotReady("the service shuts down; send the lines that were not written again")
