"""A request in the queue: cut into tasks for the answering threads, and put together again.

Work is counted in plain queries (`query_cost`): a query that is explained at a great depth counts
as several, so it is a task by itself. Between two tasks a request ends if nobody needs it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.core.errors import ClientLeft, DeadlineExceeded, KeymatchError
from service.core.memory.view import View
from service.core.types import Answer, Prediction, PredictOptions
from service.engine.loaded_bundle import LoadedBundle
from service.engine.reading.query_cost import is_interpreted, query_cost

TASK_COST = 8  # of a task of several queries: a large request must not occupy a thread for long

Serializer = Callable[[Prediction], bytes]  # called in the answering threads


class Client(Protocol):
    """Who sent a request; the HTTP server's connection is one."""

    left: bool  # whether the connection is closed
    received: float  # when the request had come in as a whole, by `monotonic`
    on_leave: Callable[[], None] | None  # called in the event loop when the connection is closed

    def arrived(self, queries: int) -> None:
        """Called when the request, with so many queries, has reached the engine."""
        ...


class QueryRequest:
    """One request; tasks are cut and answered in threads, everything else is the event loop's.

    The view is chosen when the first task is cut, so that a request that waited is answered from
    the newest view, and all of its tasks from the same.
    """

    def __init__(
        self,
        queries: Sequence[str],
        options: PredictOptions,
        *,
        loaded: LoadedBundle,
        queued: float,
        deadline: float,
        client: Client | None = None,
        serialize: Serializer | None = None,
    ) -> None:
        """Wait from `queued` to `deadline`, times of `monotonic`; call it within the event loop.

        With `serialize`, each prediction is serialised as soon as it is made: a large answer is
        never held as objects, which would all be freed in one go.
        """
        self.queries, self.options, self.loaded = queries, options, loaded
        self.deadline, self.client, self.serialize = deadline, client, serialize
        self.queued = queued
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Answer] = self.loop.create_future()
        self.view: View | None = None
        self._cut = 0  # queries that are in tasks already
        self._parts: dict[int, Answer] = {}  # by the place of their first query
        self._missing = len(queries)
        self.query_cost, self.interpreted = query_cost(options), is_interpreted(options)

    @property
    def cost(self) -> int:
        """What all of it costs, in plain queries."""
        return len(self.queries) * self.query_cost

    @property
    def uncut(self) -> int:
        """What is not in a task yet, in plain queries."""
        return (len(self.queries) - self._cut) * self.query_cost

    def cut(self, most: int = TASK_COST) -> QueryTask:
        """The next task, of one query or of several that cost at most `most`.

        A query that keeps the interpreter busy is a task by itself, so that others come between.
        """
        if self.view is None:
            self.view = self.loaded.memory.view
        queries = 1 if self.interpreted else max(1, most // self.query_cost)
        start, self._cut = self._cut, min(len(self.queries), self._cut + queries)
        return QueryTask(request=self, view=self.view, start=start, stop=self._cut)

    def useless(self, now: float) -> KeymatchError | None:
        """Why nobody needs an answer any more, None where somebody does."""
        if self.client is not None and self.client.left:
            return ClientLeft("the client disconnected before it was answered")
        if now > self.deadline or self.future.done():
            return DeadlineExceeded("the deadline passed while the request waited")
        return None

    def add(self, task: QueryTask, answer: Answer) -> None:
        """Keep a task's answer; the last one completes the request."""
        self._parts[task.start] = answer
        self._missing -= len(task)
        if not self._missing and not self.future.done():
            self.future.set_result(_joined([self._parts[start] for start in sorted(self._parts)]))

    def fail(self, error: BaseException) -> None:
        """End the request with `error`, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QueryTask:
    """The queries from `start` up to `stop` of a request, to be answered from `view`."""

    request: QueryRequest
    view: View
    start: int
    stop: int

    @property
    def queries(self) -> Sequence[str]:
        """The texts."""
        return self.request.queries[self.start : self.stop]

    @property
    def cost(self) -> int:
        """What it costs, in plain queries."""
        return len(self) * self.request.query_cost

    def __len__(self) -> int:
        return self.stop - self.start


def _joined(parts: Sequence[Answer]) -> Answer:
    """The parts as one answer: the longest wait, and the sum of what each other stage took."""
    if len(parts) == 1:
        return parts[0]
    seconds: dict[str, float] = {}
    for part in parts:
        for stage, value in part.seconds.items():
            before = seconds.get(stage, 0.0)
            seconds[stage] = max(before, value) if stage == "queue" else before + value
    predictions = tuple(prediction for part in parts for prediction in part.predictions)
    return Answer(
        version=parts[0].version,
        predictions=predictions,
        seconds=seconds,
        serialized=tuple(result for part in parts for result in part.serialized),
    )
