"""The single writer: label log first, then live rows, then one published view.

All jobs that wait when the writer turns to its queue share one commit (group commit). Every job's
future gets its result or its exception, also when the writer stops.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter

from service.core.encoder import Encoder
from service.core.errors import (
    KeymatchError,
    LogError,
    MemoryFull,
    NotReady,
    Overloaded,
)
from service.core.events import encode_label, label_event
from service.core.label_log import LabelLog
from service.core.labels import LabelTable
from service.core.memory import KnowledgeMemory, PutLabel
from service.core.types import NewLabel
from service.telemetry import Telemetry

log = logging.getLogger("keymatch")

COMMIT_LABELS = 256  # labels after which a commit takes no further jobs


@dataclass(frozen=True, kw_only=True)
class WrittenLabel:
    """What became of a label: created, updated or unchanged."""

    id: str
    status: str


@dataclass(frozen=True, kw_only=True)
class Written:
    """The memory version that holds the request's labels, and each label's fate."""

    version: int
    labels: tuple[WrittenLabel, ...]


@dataclass(frozen=True, kw_only=True)
class _Job:
    labels: tuple[NewLabel, ...]
    future: Future[Written] = field(default_factory=Future)


class Writer:
    """Owns the log and the right to change the memory."""

    def __init__(
        self,
        *,
        log: LabelLog,
        memory: KnowledgeMemory,
        encoder: Encoder,
        telemetry: Telemetry,
        queue_labels: int,
        published: Callable[[], None],
    ) -> None:
        """Start the thread; `published` is called from it after each new view."""
        self._log, self._memory, self._encoder = log, memory, encoder
        self._telemetry, self._published = telemetry, published
        self._queue_labels = queue_labels
        self._waiting = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._admission = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether writes can still succeed."""
        return not self._closed and self._thread.is_alive()

    @property
    def lag(self) -> int:
        """Logged events that the memory does not show yet."""
        return self._log.last_sequence - self._memory.view.version

    def submit(self, labels: Sequence[NewLabel]) -> Future[Written]:
        """Queue labels; the future resolves once they are synced and visible.

        Raises `Overloaded` when too many labels wait, `NotReady` when the writer has stopped.
        """
        with self._admission:
            if not self.alive:
                raise NotReady("the writer has stopped; nothing was written")
            if self._waiting and self._waiting + len(labels) > self._queue_labels:
                raise Overloaded(f"{self._waiting} labels wait to be written", retry_after=1)
            job = _Job(labels=tuple(labels))
            self._waiting += len(labels)
            self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Write what was admitted, then stop."""
        with self._admission:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        jobs: list[_Job] = []
        running = True
        try:
            while running:
                jobs, running = self._take()
                running = self._serve(jobs) and running
        finally:  # also when the thread dies: nobody may wait for it
            with self._admission:
                self._closed = True
            _fail([*jobs, *self._left()], NotReady("the writer has stopped"))

    def _serve(self, jobs: Sequence[_Job]) -> bool:
        """Write jobs and answer each; False where the writer must not go on."""
        try:
            self._write(jobs)
        except KeymatchError as error:
            _fail(jobs, error)
        except Exception:  # a defect: callers must not hang
            log.exception("defect in the writer")
            _fail(jobs, LogError("the write failed inside the service"))
            # What is logged but was not applied would be missing from every later version;
            # only a restart, which replays the log, can mend that.
            return not self.lag
        finally:
            with self._admission:
                self._waiting -= sum(len(job.labels) for job in jobs)
        return True

    def _left(self) -> Iterator[_Job]:
        """The jobs that nobody will write."""
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is not None:
                yield job

    def _take(self) -> tuple[list[_Job], bool]:
        """Wait for a job and take along those that wait behind it; False at the end."""
        jobs: list[_Job] = []
        labels = 0
        while labels < COMMIT_LABELS:
            try:
                job = self._jobs.get(block=not jobs)
            except queue.Empty:
                break
            if job is None:
                return jobs, False
            if job.future.set_running_or_notify_cancel():
                jobs.append(job)
                labels += len(job.labels)
        return jobs, True

    def _write(self, jobs: Sequence[_Job]) -> None:
        """Log, apply and publish jobs as one commit; then answer each."""
        jobs = self._with_room(jobs)
        changed, fates = changes(jobs, self._memory.view.labels)
        vectors = [encode_label(self._encoder, label) for label in changed]
        start = perf_counter()
        events = self._log.append(
            [label_event(label, rows) for label, rows in zip(changed, vectors, strict=True)],
            encoder=self._encoder.fingerprint,
        )
        committed = perf_counter()
        view = self._memory.apply(
            [
                PutLabel(sequence=event.sequence, label=label, vectors=rows)
                for event, label, rows in zip(events, changed, vectors, strict=True)
            ]
        )
        if events:
            self._telemetry.batch_size.labels("commit").observe(len(events))
            self._telemetry.observe_stages(
                {"log_commit": committed - start, "publish": perf_counter() - committed}
            )
            self._published()
        for job, fate in zip(jobs, fates, strict=True):
            job.future.set_result(Written(version=view.version, labels=fate))

    def _with_room(self, jobs: Sequence[_Job]) -> list[_Job]:
        """The jobs whose rows the memory still takes; each of the others fails alone."""
        taken, fitting = 0, []
        for job in jobs:
            rows = sum(1 + len(label.queries) for label in job.labels)
            try:
                self._memory.room(taken + rows)
            except MemoryFull as error:
                job.future.set_exception(error)
            else:
                taken += rows
                fitting.append(job)
        return fitting


def changes(
    jobs: Sequence[_Job], table: LabelTable
) -> tuple[list[NewLabel], list[tuple[WrittenLabel, ...]]]:
    """The labels that change something, in order, and each job's answer."""
    changed: list[NewLabel] = []
    pending: dict[str, NewLabel] = {}
    fates = []
    for job in jobs:
        fate = []
        for label in job.labels:
            known = pending.get(label.id) or _as_posted(table, label.id)
            status = "created" if known is None else "updated"
            if known == label:
                status = "unchanged"
            else:
                changed.append(label)
                pending[label.id] = label
            fate.append(WrittenLabel(id=label.id, status=status))
        fates.append(tuple(fate))
    return changed, fates


def _as_posted(table: LabelTable, label_id: str) -> NewLabel | None:
    label = table.get(label_id)
    if label is None:
        return None
    return NewLabel(id=label.id, text=label.text, queries=label.queries, metadata=label.metadata)


def _fail(jobs: Sequence[_Job], error: KeymatchError) -> None:
    for job in jobs:
        if not job.future.done():
            job.future.set_exception(error)
