"""What waits for the writer: clients' operations and the service's own errands, in one queue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from service.core.encoding.representer import EncodedItem
from service.core.errors import NotReady, Overloaded
from service.engine.write_operations import Operation, Written

COMMIT_ITEMS = 256  # items after which a commit takes no further jobs


@dataclass(frozen=True, kw_only=True)
class RequestKey:
    """An idempotency key and the digest of the request that came with it."""

    key: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """One operation with its encoded items, and the future that gets its result.

    `encoder_fingerprint` names the encoder that encoded the items.
    """

    operation: Operation
    encoded_items: Sequence[EncodedItem | None]
    encoder_fingerprint: str
    request: RequestKey | None = None
    future: Future[Written] = field(default_factory=Future)

    def encoded_by(self, encoder_fingerprint: str) -> Sequence[EncodedItem | None]:
        """Return the encoded items if that encoder encoded them, else as many None.

        A reload between encoding and writing may have exchanged the encoder.
        """
        return (
            self.encoded_items
            if self.encoder_fingerprint == encoder_fingerprint
            else [None] * len(self.encoded_items)
        )


@dataclass(frozen=True, kw_only=True)
class Errand:
    """Something else that only the writer may do; true where it changed anything."""

    run: Callable[[], bool]
    future: Future[bool] = field(default_factory=Future)


class JobQueue:
    """Bounded by items; once closed it takes nothing, and everything in it is failed."""

    def __init__(self, items: int) -> None:
        """Let `items` labels and instances wait."""
        self._limit, self._waiting = items, 0
        self._queue: queue.SimpleQueue[Job | Errand | None] = queue.SimpleQueue()
        self._admission = threading.Lock()
        self.closed = False

    def put(self, job: Job | Errand) -> None:
        """Queue a job; raises `Overloaded` when too much waits, `NotReady` when closed."""
        with self._admission:
            if self.closed:
                raise NotReady("the writer has stopped; nothing was written")
            if isinstance(job, Job):
                items = len(job.operation.items)
                if self._waiting and self._waiting + items > self._limit:
                    raise Overloaded(f"{self._waiting} labels wait to be written", retry_after=1)
                self._waiting += items
            self._queue.put(job)

    def take(self) -> tuple[list[Job], Errand | None, bool]:
        """Wait for work and take along the jobs that wait behind it.

        Returns jobs, an errand to be done after them, and false at the end.
        """
        jobs: list[Job] = []
        items = 0
        while items < COMMIT_ITEMS:
            try:
                job = self._queue.get(block=not jobs)
            except queue.Empty:
                break
            if job is None:
                return jobs, None, False
            if isinstance(job, Errand):
                return jobs, job, True
            if job.future.set_running_or_notify_cancel():
                jobs.append(job)
                items += len(job.operation.items)
            else:
                self.done([job])
        return jobs, None, True

    def done(self, jobs: Sequence[Job]) -> None:
        """Make room for others."""
        with self._admission:
            self._waiting -= sum(len(job.operation.items) for job in jobs)

    def end(self) -> None:
        """Take nothing more; `take` says false when what is queued is done."""
        with self._admission:
            self.closed = True
            self._queue.put(None)

    def abandon(self) -> None:
        """Fail what nobody will do."""
        with self._admission:
            self.closed = True
        for job in self._left():
            fail(job.future, NotReady("the writer has stopped"))

    def _left(self) -> Iterator[Job | Errand]:
        while not self._queue.empty():
            job = self._queue.get()
            if job is not None:
                yield job


def fail(future: Future[Written] | Future[bool], error: Exception) -> None:
    """Give an exception to who still waits."""
    if not future.done():
        future.set_exception(error)
