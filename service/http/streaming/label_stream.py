"""POST /labels as a stream: a label a line, applied in batches, answered line by line.

    client -> read_lines -> Backlog -> apply, a batch at a time -> AnswerBuffer -> client

While a batch is applied the next one is read. It is not handed over before the first is done:
when a batch fails, nothing behind it may be applied, and the writer fails jobs one by one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.core.errors import BodyTooLarge, KeymatchError, NotReady, Overloaded
from service.core.types import NewLabel
from service.engine.write_operations import Written
from service.http import problems
from service.http.request_body import NDJSON, parse_json
from service.http.responses import json_lines, line_answer, line_refusal, stream_end
from service.http.schemas import LabelBody
from service.http.streaming.batch_queue import Backlog, Entry
from service.http.streaming.ndjson import Line, read_lines
from service.http.streaming.send_buffer import AnswerBuffer
from service.settings import Limits
from service.telemetry import Telemetry

BATCH_LINES = 256
RETRY_SECONDS = 0.05  # until a batch that found the writer's queue full tries again
LOOK_SECONDS = 0.25  # how often an idle stream looks whether the service ends
# A server that closes while bytes come in resets the connection, which may cost the client the last
# lines of its answer; so what comes behind the end is read for a while, and forgotten.
LINGER_SECONDS = 5.0
PATIENCE_SECONDS = 60.0  # for a client that neither sends nor reads although it must

Apply = Callable[[Sequence[NewLabel]], Awaitable[Written]]

log = logging.getLogger("keymatch")


class LabelStream(Response):
    """The answer to a stream of labels, given while the stream is read.

    Not a `StreamingResponse`: that waits for the client's leaving by receiving, and would take the
    request's own bytes away.
    """

    media_type = NDJSON

    def __init__(
        self,
        *,
        model: type[LabelBody],
        apply: Apply,
        draining: Callable[[], bool],
        limits: Limits,
        telemetry: Telemetry,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`apply` writes labels, all or none; `draining` says whether the service is to end."""
        self.status_code, self.background = 200, None
        # What was not read of a stream that had to end is lost; no further request can follow it.
        self.init_headers({"connection": "close"})
        self._model, self._apply, self._draining = model, apply, draining
        self._limits, self._telemetry = limits, telemetry
        self._patience = patience
        self._client_left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, apply and answer until the stream ends or must."""
        backlog = Backlog(lines=BATCH_LINES, size=self._limits.body_bytes)
        answers = AnswerBuffer(
            send,
            start={
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            },
            limit=self._limits.stream_answer_bytes,
            patience=self._patience,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(answers.run())
                reading = tasks.create_task(self._read(Request(scope, receive), backlog))
                await self._answer_all(backlog, answers)
                await asyncio.wait({reading}, timeout=LINGER_SECONDS)
                reading.cancel()
                if self._client_left:
                    sending.cancel()
                else:
                    await answers.finish()
        except* TimeoutError:
            log.warning("a client does not read the answers to its stream")

    async def _read(self, request: Request, backlog: Backlog) -> None:
        try:
            async for line in read_lines(request.stream(), limit=self._limits.body_bytes):
                if not backlog.closed:
                    await backlog.put(self._entry(line))
        except ClientDisconnect:
            self._client_left = True
            backlog.close()
        else:
            backlog.end()

    def _entry(self, line: Line) -> Entry:
        size = len(line.content or b"")
        try:
            return Entry(line=line.number, size=size, label=self._label(line))
        except ValidationError as error:
            problem = problems.validation_document(error, whole="line")
        except KeymatchError as error:
            problem = problems.error_document(error)
        return Entry(line=line.number, size=size, problem=problem)

    def _label(self, line: Line) -> NewLabel:
        if line.content is None:
            raise BodyTooLarge(f"the line has more than {self._limits.body_bytes} bytes")
        return self._model.model_validate(parse_json(line.content, what="line")).to_label()

    async def _answer_all(self, backlog: Backlog, answers: AnswerBuffer) -> None:
        """Apply batch after batch and write their answers; after a failure, where it stopped."""
        last, failure = 0, None
        while failure is None and not backlog.over:
            await answers.room()
            if self._draining():
                failure = problems.error_document(_ending())
            elif batch := await backlog.take(within=LOOK_SECONDS):
                documents, failure = await self._applied(batch)
                answers.write(json_lines(documents))
                last = batch[-1].line
        if failure is not None:
            backlog.close()
            answers.write(json_lines([stream_end(last, failure)]))

    async def _applied(
        self, batch: Sequence[Entry]
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """The answer to each line of a batch, and the problem that kept it from being applied."""
        try:
            written = await self._written([entry.label for entry in batch if entry.label])
        except Exception as error:  # every line must hear of it, also of a defect
            failure = self._failure(error)
            return [line_refusal(entry.line, entry.problem or failure) for entry in batch], failure
        fates = iter(written.labels)
        return [
            line_refusal(entry.line, entry.problem)
            if entry.problem
            else line_answer(entry.line, next(fates), version=written.version)
            for entry in batch
        ], None

    async def _written(self, labels: Sequence[NewLabel]) -> Written:
        """Apply labels as soon as the writer's queue has room for them."""
        if not labels:
            return Written(version=0, labels=())
        while True:
            try:
                return await self._apply(labels)
            except Overloaded:
                if self._client_left:
                    raise
                if self._draining():
                    raise _ending() from None
                await asyncio.sleep(RETRY_SECONDS)

    def _failure(self, error: Exception) -> dict[str, Any]:
        reason = problems.reason(error)
        if reason:
            self._telemetry.rejected.labels(reason).inc()
        return problems.error_document(error)


def _ending() -> NotReady:
    return NotReady("the service is draining; send the lines that were not applied once more")
