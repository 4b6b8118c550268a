"""The writer's queue: clients' operations and the service's own tasks, in order of arrival."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from service.core.encoding.representer import EncodedItem
from service.core.errors import NotReady, Overloaded
from service.engine.writing.operations import Operation
from service.engine.writing.written import Written

COMMIT_ITEMS = 256  # labels and instances after which a commit takes no further jobs


@dataclass(frozen=True, kw_only=True)
class RequestKey:
    """An idempotency key and the digest of the request that came with it."""

    key: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class WriteJob:
    """One client's operation, its encoded items, and the future that gets its result.

    `encoder_fingerprint` names the encoder and combiner that encoded the items.
    """

    operation: Operation
    encoded_items: Sequence[EncodedItem | None]
    encoder_fingerprint: str
    request: RequestKey | None = None
    future: Future[Written] = field(default_factory=Future)

    def encoded_by(self, encoder_fingerprint: str) -> Sequence[EncodedItem | None]:
        """The encoded items if this encoder encoded them, else as many None.

        A reload between encoding and writing may have replaced the encoder.
        """
        if self.encoder_fingerprint == encoder_fingerprint:
            return self.encoded_items
        return [None] * len(self.encoded_items)


@dataclass(frozen=True, kw_only=True)
class WriterTask:
    """Work of the service itself that only the writer's thread may do.

    `run` returns whether it changed anything.
    """

    run: Callable[[], bool]
    future: Future[bool] = field(default_factory=Future)


class WriteQueue:
    """Bounded by items; once closed it takes nothing, and what it still holds fails."""

    def __init__(self, items: int) -> None:
        """Let `items` labels and instances wait."""
        self._limit, self._waiting = items, 0
        self._queue: queue.SimpleQueue[WriteJob | WriterTask | None] = queue.SimpleQueue()
        self._admission = threading.Lock()
        self.closed = False

    def put(self, job: WriteJob | WriterTask) -> None:
        """Queue a job or task; raises `Overloaded` when too much waits, `NotReady` when closed."""
        with self._admission:
            if self.closed:
                raise NotReady("the writer has stopped; nothing was written")
            if isinstance(job, WriteJob):
                items = len(job.operation.items)
                if self._waiting and self._waiting + items > self._limit:
                    raise Overloaded(f"{self._waiting} labels wait to be written", retry_after=1)
                self._waiting += items
            self._queue.put(job)

    def take(self) -> tuple[list[WriteJob], WriterTask | None, bool]:
        """Wait for work; returns all jobs up to the next task, that task, and whether to go on.

        The jobs are at most those of one commit. The task runs after them.
        """
        jobs: list[WriteJob] = []
        items = 0
        while items < COMMIT_ITEMS:
            try:
                job = self._queue.get(block=not jobs)
            except queue.Empty:
                break
            if job is None:
                return jobs, None, False
            if isinstance(job, WriterTask):
                return jobs, job, True
            if job.future.set_running_or_notify_cancel():
                jobs.append(job)
                items += len(job.operation.items)
            else:
                self.done([job])
        return jobs, None, True

    def done(self, jobs: Sequence[WriteJob]) -> None:
        """Make room for as many items as these jobs had."""
        with self._admission:
            self._waiting -= sum(len(job.operation.items) for job in jobs)

    def end(self) -> None:
        """Refuse new jobs; once all queued jobs are taken, `take` says to stop."""
        with self._admission:
            self.closed = True
            self._queue.put(None)

    def abandon(self) -> None:
        """Take nothing more and fail everything that is queued."""
        with self._admission:
            self.closed = True
        for job in self._left():
            fail(job.future, NotReady("the writer has stopped"))

    def _left(self) -> Iterator[WriteJob | WriterTask]:
        while not self._queue.empty():
            job = self._queue.get()
            if job is not None:
                yield job


def fail(future: Future[Written] | Future[bool], error: Exception) -> None:
    """Give an exception to whoever waits, unless there is a result already."""
    if not future.done():
        future.set_exception(error)
