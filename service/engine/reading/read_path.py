"""The way of a query: waiting for a version, admission, the queue, the answering threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any

from service.core.errors import ClientLeft, DeadlineExceeded, InvalidInput, Overloaded
from service.core.types import Answer, PredictOptions
from service.engine.loaded_bundle import LoadedBundle
from service.engine.reading.answer_threads import AnswerThreads
from service.engine.reading.query_request import Client, QueryRequest, Serializer
from service.engine.reading.task_queue import TaskQueue
from service.engine.reading.view_waiters import ViewWaiters
from service.settings import EngineSettings
from service.telemetry import Telemetry

# By how many queues of `queue_labels` a version may lie ahead of the memory. A commit of another
# process writes at most what its queue holds, and the log is read here within milliseconds of each
# commit, so two queues are more than an acknowledged write can lie ahead: at the default of 10,000,
# twenty times the lag of which the alert KeymatchLogLag warns.
FULL_QUEUES = 2


class ReadPath:
    """Answers queries from the newest view; belongs to the event loop."""

    def __init__(
        self,
        queue: TaskQueue,
        telemetry: Telemetry,
        *,
        loaded: Callable[[], LoadedBundle],
        settings: EngineSettings,
    ) -> None:
        """Start the threads that take from `queue`; `loaded` returns the bundle that is served."""
        self._queue, self._loaded = queue, loaded
        self._threads = AnswerThreads(queue, telemetry, threads=settings.threads)
        self._version_waiters = settings.version_waiters
        self._most_in_flight = FULL_QUEUES * settings.queue_labels  # events
        self.waiters = ViewWaiters()

    def submit(self, function: Callable[[], None]) -> Future[None]:
        """Call `function` in the next free answering thread."""
        return self._threads.submit(function)

    def close(self) -> None:
        """Answer what waits, then end the threads."""
        self._threads.close()

    async def predict(
        self,
        queries: Sequence[str],
        base: PredictOptions,
        *,
        deadline: float,
        min_version: int,
        client: Client | None,
        serialize: Serializer | None,
        **requested: Any,
    ) -> tuple[str, Answer]:
        """Answer queries, see `Engine.predict`; one whose `client` has left is not worked on.

        `serialize` is called in an answering thread with each prediction, in whose place the answer
        then holds the bytes. Raises `InvalidInput` for a `min_version` that cannot come,
        `Overloaded`, `DelayExceeded`, `DeadlineExceeded`, `ClientLeft`, or what `serialize` raises.
        """
        queued = monotonic()
        if client is not None:
            client.arrived(len(queries))
            # What the event loop was late counts: a request waits there, too.
            queued = client.received
        if self._version() < min_version:
            await self._wait_for(min_version, deadline, client)
            queued = monotonic()
        loaded = self._loaded()
        request = QueryRequest(
            queries,
            loaded.options(base, **requested),
            loaded=loaded,
            queued=queued,
            deadline=deadline,
            client=client,
            serialize=serialize,
        )
        self._queue.put(request)
        return loaded.name, await self._answer(request)

    async def _answer(self, request: QueryRequest) -> Answer:
        """Wait for the answer, as long as the deadline has not passed and the client is there."""
        client, seconds = request.client, max(0.0, request.deadline - monotonic())
        late = DeadlineExceeded("the deadline passed before the answer was there")
        timer = request.loop.call_later(seconds, self._queue.withdraw, request, late)
        if client is not None:
            left = ClientLeft("the client disconnected before it was answered")
            client.on_leave = partial(self._queue.withdraw, request, left)
        try:
            return await request.future
        finally:
            timer.cancel()
            if client is not None:
                client.on_leave = None

    async def _wait_for(self, min_version: int, deadline: float, client: Client | None) -> None:
        """Wait for a version outside the queue, where nobody waits behind this request."""
        if min_version - self._version() > self._most_in_flight:
            raise InvalidInput(
                f"the newest version is {self._version()} here, and writes under way reach at most"
                f" {self._most_in_flight} further",
                field="min_version",
            )
        if len(self.waiters) >= self._version_waiters:
            raise Overloaded(f"{len(self.waiters)} requests wait for a version", retry_after=1)
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await self.waiters.wait(lambda: self._version() >= min_version, client=client)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the memory did not reach version {min_version} before the deadline"
            ) from error

    def _version(self) -> int:
        return self._loaded().memory.view.version
