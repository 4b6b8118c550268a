"""The single writer of a process: it writes the label log, then live rows, then publishes a view.

All jobs waiting in the queue share one commit (group commit). First the writer applies what other
processes wrote to the same log. Then it plans the jobs on a draft of the next view, logs their
changes, and publishes the view. Every job's future gets its result or its exception, even if the
writer stops.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import perf_counter, thread_time

from service.core.changes import Posted, UseBundle
from service.core.encoding.representer import EncodedItem
from service.core.errors import KeymatchError, KeyReused, LogCorrupt, LogError, NotReady
from service.core.label_log import AnsweredRequest, Appending, LabelLog
from service.core.replay import texts_of
from service.core.types import Event, NewLabel
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.log_checker import LogChecker
from service.engine.writing.operations import (
    Commit,
    PostLabels,
    WriteJob,
    Written,
    from_document,
    to_document,
)
from service.engine.writing.write_path import WriteQueue, WriterTask, fail
from service.telemetry import Telemetry

log = logging.getLogger("keymatch")
Outcome = Written | KeymatchError


class LogHealth:
    """The label log's last known errors: cannot be read, cannot be written, is damaged.

    The three are kept apart. Reads succeed on a full disk, so only a write shows that writes
    succeed again. Only a walk over the whole log shows that it is intact.
    """

    def __init__(self) -> None:
        self._causes = {"damage": "", "unwritable": "", "unreadable": ""}

    @property
    def damage(self) -> str:
        """The damage found by the last walk over the whole log; empty if none."""
        return self._causes["damage"]

    @property
    def cause(self) -> str:
        """The known reason why the log cannot be used; empty if there is none."""
        return next(filter(None, self._causes.values()), "")

    def note(self, **causes: str) -> None:
        """Store causes (`damage`, `unwritable`, `unreadable`), empty for success; log changes."""
        before = self.cause
        self._causes.update(causes)
        if self.cause and not before:
            log.error("the label log cannot be used", extra={"cause": self.cause})
        elif before and not self.cause:
            log.info("the label log can be used again")


class _Dropped(Exception):
    """Rolls back a transaction on purpose."""


class Writer:
    """A thread that is the only one to change the memory."""

    def __init__(
        self,
        *,
        log: LabelLog,
        loaded: LoadedBundle,
        telemetry: Telemetry,
        queue_labels: int,
        queue_delay: float = math.inf,
        published: Callable[[LoadedBundle], None],
        reload_requested: Callable[[UseBundle], None] = lambda request: None,
        encoding_took: Callable[[float], None] = lambda seconds: None,
        check_pause: float = 0.0,
    ) -> None:
        """Start the thread, which serves the memory of `loaded`.

        `queue_labels` and `queue_delay` (seconds) bound the queue. `published` is called after each
        new view of the served memory, `reload_requested` if another process logged a switch to
        another bundle, and `encoding_took` with the CPU seconds of each encoding. `check_pause` is
        the number of seconds between two walks over the whole log; 0 disables walks.
        """
        self._log, self._telemetry, self._encoding_took = log, telemetry, encoding_took
        self._published, self._reload_requested = published, reload_requested
        self._queue = WriteQueue(queue_labels, delay=queue_delay)
        self.health = LogHealth()
        self._loaded, self._newest = loaded, loaded.memory.view.version  # newest known event
        self.log_changed = threading.Event()  # others may have written to it since the last read
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        self._checker = LogChecker(
            log, pause=check_pause, found=lambda damage: self.health.note(damage=damage)
        )

    @property
    def alive(self) -> bool:
        """Whether writes can still succeed."""
        return not self._queue.closed and self._thread.is_alive()

    @property
    def lag(self) -> int:
        """The number of known events of the log that the served memory does not hold yet."""
        return max(0, self._newest - self._loaded.memory.view.version)

    def submit(self, job: WriteJob) -> Future[Written]:
        """Queue a job; its future resolves once the job is synced to disk and visible.

        Raises `Overloaded` if too much waits, `NotReady` if the writer has stopped.
        """
        self._queue.put(job)
        return job.future

    def wake(self, newest: int | None = None) -> None:
        """Read the log soon: another process may have written to it, up to the event `newest`.

        This process's own commits call this, too, maybe many times per second, but do not wake the
        writer.
        """
        if not self.health.cause:
            with suppress(LogError):  # the writer will get this error, too
                newest = self._log.last_sequence() if newest is None else newest
                if newest <= self._loaded.memory.view.version:
                    return
        if not self.log_changed.is_set():
            self.log_changed.set()
            with suppress(NotReady):  # a stopped writer need not read
                self._run_task(self._read_if_changed)

    def attach(self, attach: Callable[[], bool], *, to: LoadedBundle) -> Future[bool]:
        """Call `attach`, which replaces rows by a built segment; the future gets its result.

        `attach` runs in the writer's thread and returns whether the segment was still needed.
        """

        def attached() -> bool:
            needed = attach()
            if needed:
                self._announce(to)
            return needed

        return self._run_task(attached)

    def switch_to(self, loaded: LoadedBundle, *, configured: str = "") -> Future[bool]:
        """Switch to another bundle once its memory holds all logged events.

        With `configured`, the fingerprint of the bundle that this service was started with, the
        switch is logged, and other processes on the same log follow.
        """
        return self._run_task(lambda: self._switch_to(loaded, configured))

    def rehearse(self) -> Future[bool]:
        """Write a label as a rehearsal, and drop it before it is logged.

        First calls compile statements and allocate memory, which takes some 50 ms. No client should
        wait for that.
        """
        return self._run_task(self._rehearse)

    def close(self) -> None:
        """Write all admitted jobs, then stop."""
        self._checker.close()
        self._queue.end()
        self._thread.join()

    def _run_task(self, run: Callable[[], bool]) -> Future[bool]:
        task = WriterTask(run=run)
        self._queue.put(task)
        return task.future

    # The writer's thread -----------------------------------------------------------------

    def _run(self) -> None:
        jobs: list[WriteJob] = []
        running = True
        try:
            while running:
                jobs, task, running = self._queue.take()
                self._write_all(jobs)
                jobs = []
                if task is not None:
                    running = self._do(task) and running
        finally:  # even if the thread dies: every waiting client gets an error
            for job in jobs:
                fail(job.future, NotReady("the writer has stopped"))
            self._queue.abandon()

    def _do(self, task: WriterTask) -> bool:
        """Run a task; returns false if the writer must stop."""
        go_on = True
        try:
            task.future.set_result(task.run())
        except Exception as error:  # the waiting caller must get an error
            if isinstance(error, LogCorrupt):
                log.error("the label log is damaged", extra={"cause": str(error)})
                go_on = False
            elif isinstance(error, LogError):
                self.health.note(unreadable=str(error))
            elif not isinstance(error, KeymatchError):
                log.exception("defect in the writer")
                go_on = False
            fail(task.future, error)
        return go_on

    def _write_all(self, jobs: Sequence[WriteJob]) -> None:
        """Write jobs and give each future its result or its exception."""
        if not jobs:
            return
        outcomes = self._write(jobs)
        # Before the answers: a client that writes again at once must find a place in the queue.
        self._queue.done(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Exception):
                fail(job.future, outcome)
            else:
                job.future.set_result(outcome)

    def _write(self, jobs: Sequence[WriteJob]) -> Sequence[Outcome | Exception]:
        """Write jobs; returns each job's result or exception.

        Only a `LogError`, and a system error on writing or allocating, count as the log's failure.
        Any other error, such as one of the encoder, is a defect, and each job gets it.
        """
        outcome: Exception
        try:
            return self._commit(jobs)
        except KeymatchError as error:
            # A write refused because of damage does not show whether the log can be written.
            if isinstance(error, LogError) and not self.health.damage:
                self.health.note(unwritable=str(error))
            outcome = error
        except Exception as error:  # a defect: the waiting clients must get an error
            log.exception("defect in the writer")
            refused = isinstance(error, OSError | MemoryError)
            outcome = LogError("the write failed inside the service") if refused else error
        # A failed commit may still have reached the disk, so read the log.
        self.wake()
        return [outcome] * len(jobs)

    def _commit(self, jobs: Sequence[WriteJob]) -> list[Outcome]:
        """Log, apply and publish jobs; returns each job's result, or why it was refused.

        Raises `LogError` if the log cannot be read or written; no job is published then.
        """
        if self.health.damage:  # the next start would refuse the log
            raise LogCorrupt(self.health.damage)
        loaded = self._loaded
        self._read_if_changed()
        encoded = self._encoded(jobs, loaded)  # before the log's lock is taken
        start = perf_counter()
        with self._log.exclusive() as appending:
            self._catch_up(loaded, appending)
            commit = Commit(loaded)
            outcomes = [
                _plan(job, encoded_items, commit, appending)
                for job, encoded_items in zip(jobs, encoded, strict=True)
            ]
            appending.append(commit.changes, encoder=loaded.representer.fingerprint)
        committed = perf_counter()
        if commit.changes:
            self.health.note(unreadable="", unwritable="")
            self._newest = commit.version
            loaded.memory.publish(commit.draft)
            self._telemetry.batch_size.labels("commit").observe(len(commit.changes))
            self._telemetry.observe_stages(
                {"log_commit": committed - start, "publish": perf_counter() - committed}
            )
            self._announce(loaded)
        return outcomes

    def _encoded(
        self, jobs: Sequence[WriteJob], loaded: LoadedBundle
    ) -> list[list[EncodedItem | None]]:
        """Encode the jobs' items; only items that seem to change nothing stay None."""
        start, labels = thread_time(), loaded.memory.view.labels
        encoded = [list(job.encoded_by(loaded.representer.fingerprint)) for job in jobs]
        missing: list[tuple[list[EncodedItem | None], int, Posted]] = []
        for job, encoded_items in zip(jobs, encoded, strict=True):
            if None not in encoded_items:
                continue
            new = {id(item) for item in job.operation.to_encode(labels)}
            missing += [
                (encoded_items, place, item)
                for place, item in enumerate(job.operation.items)
                if encoded_items[place] is None and id(item) in new
            ]
        if missing:
            newly_encoded = loaded.representer.encode([texts_of(item) for _, _, item in missing])
            for (encoded_items, place, _), item in zip(missing, newly_encoded, strict=True):
                encoded_items[place] = item
            self._encoding_took(thread_time() - start)
        return encoded

    def _read_if_changed(self) -> bool:
        """Apply the log's new events, if there may be any, to the served memory."""
        if self.log_changed.is_set():
            self.log_changed.clear()
            self._read_on(self._loaded)
            self.health.note(unreadable="")
        return True

    def _read_on(self, loaded: LoadedBundle) -> None:
        """Apply the log's new events without holding its lock."""
        self._apply(loaded, self._log.read(after=loaded.memory.view.version))

    def _catch_up(self, loaded: LoadedBundle, appending: Appending) -> None:
        """Apply the log's new events under its lock, so the memory holds all events."""
        version = loaded.memory.view.version
        if appending.last > version:
            self._apply(loaded, appending.read(after=version))

    def _apply(self, loaded: LoadedBundle, events: Iterator[Event]) -> None:
        before = loaded.memory.view.version
        reload_request = loaded.apply(events)
        if loaded.memory.view.version == before:
            return
        self._newest = max(self._newest, loaded.memory.view.version)
        self._announce(loaded)
        if reload_request is not None:
            self._reload_requested(reload_request)

    def _announce(self, loaded: LoadedBundle) -> None:
        """Announce a memory's new view if the memory is the served one."""
        if loaded is self._loaded:
            self._published(loaded)

    def _rehearse(self) -> bool:
        loaded = self._loaded
        job = WriteJob(operation=PostLabels(items=(NewLabel(id="warm-up", text="warm-up"),)))
        # If the log cannot be written, the first write reports it.
        with suppress(LogError, _Dropped):
            [encoded_items] = self._encoded([job], loaded)
            with self._log.exclusive() as appending:
                commit = Commit(loaded)
                _plan(job, encoded_items, commit, appending)
                appending.append(commit.changes, encoder=loaded.representer.fingerprint)
                commit.draft.view()
                raise _Dropped
        return False

    def _switch_to(self, loaded: LoadedBundle, configured: str) -> bool:
        self._read_on(loaded)
        if configured:
            with self._log.exclusive() as appending:
                self._catch_up(loaded, appending)
                change = UseBundle(
                    sequence=appending.last + 1,
                    bundle=loaded.bundle.folder.name,
                    configured=configured,
                )
                appending.append([change], encoder=loaded.representer.fingerprint)
            loaded.apply(self._log.read(after=loaded.memory.view.version))
        self._newest = max(self._newest, loaded.memory.view.version)
        self._loaded = loaded
        self._published(loaded)
        return True


def _plan(
    job: WriteJob,
    encoded_items: Sequence[EncodedItem | None],
    commit: Commit,
    appending: Appending,
) -> Outcome:
    """Add a job's changes to the commit, or return its idempotency key's earlier answer.

    A returned error concerns this job alone; none of its changes was added.
    """
    request = job.request
    known = appending.answered(request.key) if request else None
    if request and known:
        if known.digest != request.digest:
            return KeyReused("this idempotency key came with another request before")
        return from_document(known.version, known.answer)
    try:
        written = job.operation.plan(commit, encoded_items)
    except KeymatchError as error:
        # Drop the frames: they hold the job, whose future holds the error. This cycle would keep a
        # large request until the garbage collector stops all threads to free it.
        return error.with_traceback(None)
    if request:
        appending.remember(
            AnsweredRequest(
                key=request.key,
                digest=request.digest,
                version=written.version,
                answer=to_document(written),
            )
        )
    return written
