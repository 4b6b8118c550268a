"""The writer's queue: clients' operations and the service's own tasks, in order of arrival."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic

from service.core.changes import rows_of
from service.core.encoding.representer import EncodedItem
from service.core.errors import NotReady, Overloaded
from service.engine.writing.operations import Operation
from service.engine.writing.written import Written

# A commit takes no further jobs after so many labels and instances, or after so many texts that the
# writer must encode first: what arrives meanwhile then waits for some 20 ms at most.
COMMIT_ITEMS, COMMIT_TEXTS = 256, 16


@dataclass(frozen=True, kw_only=True)
class RequestKey:
    """An idempotency key and the digest of the request that came with it."""

    key: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class WriteJob:
    """One client's operation, its encoded items, and the future that gets its result.

    `encoder_fingerprint` names the encoder and combiner that encoded the items; the writer encodes
    those that are None. `submitted` is a time of `monotonic`. The future can be cancelled until the
    writer has taken the job, and then nothing is written.
    """

    operation: Operation
    encoded_items: Sequence[EncodedItem | None]
    encoder_fingerprint: str
    request: RequestKey | None = None
    submitted: float = field(default_factory=monotonic)
    future: Future[Written] = field(default_factory=Future)

    @property
    def unencoded_texts(self) -> int:
        """How many texts the writer may have to encode."""
        return sum(
            rows_of(item)
            for item, encoded in zip(self.operation.items, self.encoded_items, strict=True)
            if encoded is None
        )

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
    """Bounded by items and by delay; once closed it takes nothing, and its jobs fail."""

    def __init__(self, items: int, *, delay: float = math.inf) -> None:
        """Let `items` labels and instances wait, for `delay` seconds."""
        self._limit, self._delay = items, delay
        self._waiting = 0  # items of all jobs that are not done
        self._undone: dict[int, WriteJob] = {}  # by identity, the oldest first
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
                if self._undone and self._oldest_delay() > self._delay:
                    raise Overloaded("writes wait for too long", retry_after=1)
                self._waiting += items
                self._undone[id(job)] = job
            self._queue.put(job)

    def take(self) -> tuple[list[WriteJob], WriterTask | None, bool]:
        """Wait for work; returns all jobs up to the next task, that task, and whether to go on.

        The jobs are at most those of one commit. The task runs after them.
        """
        jobs: list[WriteJob] = []
        items = texts = 0
        while items < COMMIT_ITEMS and texts < COMMIT_TEXTS:
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
                texts += job.unencoded_texts
            else:
                self.done([job])
        return jobs, None, True

    def done(self, jobs: Sequence[WriteJob]) -> None:
        """Make room for as many items as these jobs had."""
        with self._admission:
            for job in jobs:
                self._waiting -= len(job.operation.items)
                del self._undone[id(job)]

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

    def _oldest_delay(self) -> float:
        return monotonic() - next(iter(self._undone.values())).submitted

    def _left(self) -> Iterator[WriteJob | WriterTask]:
        while not self._queue.empty():
            job = self._queue.get()
            if job is not None:
                yield job


def fail(future: Future[Written] | Future[bool], error: Exception) -> None:
    """Give an exception to whoever waits, unless there is a result already."""
    if not future.done():
        future.set_exception(error)
