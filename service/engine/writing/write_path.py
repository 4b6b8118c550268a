"""A write's way: admission, encoding of bulk posts in child processes, then the writer's queue.

Clients' operations and the service's own tasks wait in one queue, in order of arrival.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic

from service.core.changes import Posted, rows_of
from service.core.encoding.representer import EncodedItem
from service.core.errors import DeadlineExceeded, NotReady, Overloaded, UnknownLabels
from service.engine.encoder_pool import LabelEncoding
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.operations import (
    LabelsKnown,
    Operation,
    PostInstances,
    Refuse,
    RequestKey,
    WriteJob,
    Written,
    require_labels,
)

# The most labels and instances of a commit, and the most texts that the writer encodes for it: a
# job that arrives meanwhile then waits for some 20 ms at most.
COMMIT_ITEMS, COMMIT_TEXTS = 256, 16
BURST_SECONDS = 1.0  # the bucket holds the inflow of this time
FEW_TEXTS = 4  # the writer's thread encodes so few itself, within some milliseconds


@dataclass(frozen=True, kw_only=True)
class WriterTask:
    """An internal task for the writer's thread; `run` returns whether it changed anything."""

    run: Callable[[], bool]
    future: Future[bool] = field(default_factory=Future)


class WriteQueue:
    """The writer's queue, bounded by items and delay. Once closed, it refuses jobs."""

    def __init__(self, items: int, *, delay: float = math.inf) -> None:
        """Let at most `items` labels and instances wait, for at most `delay` seconds."""
        self._limit, self._delay = items, delay
        self._waiting = 0  # number of items of all unfinished jobs
        self._undone: dict[int, WriteJob] = {}  # by identity, the oldest first
        self._queue: queue.SimpleQueue[WriteJob | WriterTask | None] = queue.SimpleQueue()
        self._admission = threading.Lock()
        self.closed = False

    def put(self, job: WriteJob | WriterTask) -> None:
        """Queue a job or task; raises `Overloaded` if too much waits, `NotReady` if closed."""
        with self._admission:
            if self.closed:
                raise NotReady("the writer has stopped; nothing was written")
            if isinstance(job, WriteJob):
                items = len(job.operation.items)
                if self._waiting and self._waiting + items > self._limit:
                    raise Overloaded(f"{self._waiting} labels wait to be written", retry_after=1)
                oldest = next(iter(self._undone.values()), None)
                if oldest is not None and monotonic() - oldest.submitted > self._delay:
                    raise Overloaded("writes wait for too long", retry_after=1)
                self._waiting += items
                self._undone[id(job)] = job
            self._queue.put(job)

    def take(self) -> tuple[list[WriteJob], WriterTask | None, bool]:
        """Wait for work; returns all jobs up to the next task, that task, and whether to go on.

        The jobs fit into one commit. The task runs after them.
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
        """Free the places of these jobs' items."""
        with self._admission:
            for job in jobs:
                self._waiting -= len(job.operation.items)
                del self._undone[id(job)]

    def end(self) -> None:
        """Refuse new jobs. Once all queued jobs are taken, `take` tells its caller to stop."""
        with self._admission:
            self.closed = True
            self._queue.put(None)

    def abandon(self) -> None:
        """Refuse new jobs and fail all queued ones."""
        with self._admission:
            self.closed = True
        while not self._queue.empty():
            job = self._queue.get()
            if job is not None:
                fail(job.future, NotReady("the writer has stopped"))


def fail(future: Future[Written] | Future[bool], error: Exception) -> None:
    """Set an exception on the future unless it already has a result."""
    if not future.done():
        future.set_exception(error)


class ProcessorShare:
    """A token bucket of CPU time for one kind of work. Any thread may use it.

    Work may begin while the bucket is not empty, and is charged afterwards. So the level may be
    negative for a while. Over a long time, the work takes its share and one burst.
    """

    def __init__(self, share: float, *, cores: int, clock: Callable[[], float] = monotonic) -> None:
        """Create a full bucket that refills at `share` of `cores` cores; `clock` counts seconds."""
        self._per_second = share * cores
        self._clock = clock
        self._level, self._filled = self._per_second * BURST_SECONDS, clock()

    @property
    def left(self) -> bool:
        """Whether more work may begin."""
        return self._refilled() > 0

    def spend(self, seconds: float) -> None:
        """Subtract used CPU seconds."""
        self._level = self._refilled() - seconds

    def _refilled(self) -> float:
        now = self._clock()
        level = self._level + (now - self._filled) * self._per_second
        self._level, self._filled = min(level, self._per_second * BURST_SECONDS), now
        return self._level


class WritePath:
    """Passes operations to the writer after children encode many texts. For the event loop only.

    The writer's thread encodes a few texts itself, in half the CPU time of a child, which needs two
    process switches and has cold caches. Many texts would delay other writes there.
    """

    def __init__(
        self,
        encoding: LabelEncoding,
        *,
        submit: Callable[[WriteJob], Future[Written]],
        loaded: Callable[[], LoadedBundle],
        share: ProcessorShare,
        queue_labels: int,
        patience: float,
    ) -> None:
        """`submit` queues a job for the writer; `loaded` returns the served bundle.

        At most `queue_labels` items may wait to be encoded. The writer's thread encodes while
        `share` allows, otherwise children do. A write waits at most `patience` seconds.
        """
        self._encoding, self._submit, self._loaded = encoding, submit, loaded
        self._share, self._patience = share, patience
        self._most, self._waiting = queue_labels, 0  # counts of items to be encoded

    async def write(self, operation: Operation, *, request: RequestKey | None) -> Written:
        """Carry out an operation, see `Engine.write`."""
        items, loaded = operation.items, self._loaded()
        encoded_items: Sequence[EncodedItem | None] = ()
        if items and not self._left_to_writer(items, loaded):
            if isinstance(operation, PostInstances) and not operation.skip_unknown:
                answered = await self._answered(operation, loaded, request)
                if answered is not None:
                    return answered
            with self._admitted(len(items)):
                # In a thread: making ids from texts takes a second for a million characters.
                labels = loaded.memory.view.labels
                new = {id(item) for item in await asyncio.to_thread(operation.to_encode, labels)}
                if new:
                    needed = [id(item) in new for item in items]
                    encoded_items = await self._encoding.encode(loaded, items, needed)
        job = WriteJob(
            operation=operation,
            encoded_items=encoded_items,
            encoder_fingerprint=loaded.representer.fingerprint,
            request=request,
        )
        return await self._written(job)

    def _left_to_writer(self, items: Sequence[Posted], loaded: LoadedBundle) -> bool:
        if sum(rows_of(item) for item in items) > FEW_TEXTS:
            return False
        # With a combiner children encode, because its arithmetic holds the GIL for long.
        return (loaded.bundle.novel is None and self._share.left) or not self._encoding.warm

    @contextmanager
    def _admitted(self, items: int) -> Iterator[None]:
        """Count `items` as waiting during the block. Raises `Overloaded` if too many wait."""
        if self._waiting and self._waiting + items > self._most:
            raise Overloaded(f"{self._waiting} labels wait to be encoded", retry_after=1)
        self._waiting += items
        try:
            yield
        finally:
            self._waiting -= items

    async def _answered(
        self, operation: PostInstances, loaded: LoadedBundle, request: RequestKey | None
    ) -> Written | None:
        """Refuse clicks of unknown labels before they are encoded; None if all labels exist.

        The writer makes the check: another process may have just written the labels, or the
        idempotency key may already have an answer. Raises `UnknownLabels`.
        """
        instances = operation.items
        try:
            labels = loaded.memory.view.labels.of(operation.tenant)
            await asyncio.to_thread(require_labels, instances, labels)
        except UnknownLabels:
            known = LabelsKnown("all labels exist")
            refuse = Refuse(error=known, instances=instances, tenant=operation.tenant)
            job = WriteJob(operation=refuse, request=request)
            with suppress(LabelsKnown):
                return await self._written(job)
        return None

    async def _written(self, job: WriteJob) -> Written:
        """Queue a job and wait for its result; raises `DeadlineExceeded` if it begins too late."""
        written = asyncio.wrap_future(self._submit(job))
        # Shielded: a client that leaves must not cancel a write that may already be on disk.
        try:
            async with asyncio.timeout(self._patience):
                return await asyncio.shield(written)
        except TimeoutError as error:
            if job.future.cancel():  # the writer has not begun it and will skip it
                raise DeadlineExceeded("the write waited too long; nothing was written") from error
            return await asyncio.shield(written)
