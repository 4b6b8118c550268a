"""The single writer of a process: label log first, then live rows, then one published view.

All jobs that wait when the writer turns to its queue share one commit (group commit). What other
processes wrote to the same log is applied before, in the log's order. Every job's future gets its
result or its exception, also when the writer stops.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from service.core.changes import UseBundle
from service.core.errors import KeymatchError, LogCorrupt, LogError, NotReady
from service.core.index.protocol import Segment
from service.core.label_log import LabelLog
from service.core.memory.compaction import SegmentPlan
from service.core.memory.sealed_rows import SealedRows
from service.core.replay import new_event
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.group_commit import GroupCommit, Outcome
from service.engine.writing.log_checker import LogChecker
from service.engine.writing.log_follower import LogFollower
from service.engine.writing.log_health import LogHealth
from service.engine.writing.write_queue import WriteJob, WriteQueue, WriterTask, fail
from service.engine.writing.written import Written
from service.telemetry import Telemetry

log = logging.getLogger("keymatch")


class Writer:
    """The only one that changes the memory, on a thread of its own."""

    def __init__(
        self,
        *,
        log: LabelLog,
        loaded: LoadedBundle,
        telemetry: Telemetry,
        queue_items: int,
        queue_delay: float = math.inf,
        published: Callable[[LoadedBundle], None],
        reload_requested: Callable[[UseBundle], None] = lambda request: None,
        encoding_took: Callable[[float], None] = lambda seconds: None,
        check_pause: float = 0.0,
    ) -> None:
        """Start the thread; it calls `published` and `reload_requested`, see `LogFollower`.

        `queue_items` and `queue_delay`, in seconds, bound the queue. `encoding_took` is called with
        the processor seconds of what the thread has encoded. `check_pause` is the number of seconds
        between two walks over the whole log, 0 for none.
        """
        self._log = log
        self._queue = WriteQueue(queue_items, delay=queue_delay)
        self._health = LogHealth()
        self._follower = LogFollower(
            log, loaded, self._health, published=published, reload_requested=reload_requested
        )
        self._group_commit = GroupCommit(
            log, self._follower, self._health, telemetry, encoding_took=encoding_took
        )
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        self._checker = LogChecker(
            log, pause=check_pause, found=lambda damage: self._health.note(damage=damage)
        )

    @property
    def alive(self) -> bool:
        """Whether writes can still succeed."""
        return not self._queue.closed and self._thread.is_alive()

    @property
    def failing(self) -> str:
        """Why the log cannot be used, as far as is known; empty where it can."""
        return self._health.cause

    @property
    def log_in_place(self) -> bool:
        """Whether a restart would find what is written; false once the log was replaced."""
        return self._log.in_place

    @property
    def log_damaged(self) -> bool:
        """Whether the last walk over the whole log has met damage."""
        return bool(self._health.damage)

    @property
    def lag(self) -> int:
        """Logged events that the memory does not hold yet."""
        return self._follower.lag

    def submit(self, job: WriteJob) -> Future[Written]:
        """Queue a job; its future resolves once the job is synced to disk and visible.

        Raises `Overloaded` when too much waits, `NotReady` when the writer has stopped.
        """
        self._queue.put(job)
        return job.future

    def wake(self) -> None:
        """Read the log soon: another process may have written to it.

        Called after this process's own commits as well, which may be many a second: those leave the
        writer alone.
        """
        if not self._health.cause:
            with suppress(LogError):  # the writer will meet it, too
                if self._log.last_sequence() <= self._follower.loaded.memory.view.version:
                    return
        if not self._follower.log_changed.is_set():
            self._follower.log_changed.set()
            with suppress(NotReady):  # a writer that has stopped need not read
                self._queue.put(WriterTask(run=self._follower.read_if_changed))

    def attach(self, sealed: SealedRows, *, to: LoadedBundle) -> Future[bool]:
        """Put a built segment in place of its rows; the future says whether it was still needed."""
        return self._run_task(lambda: self._announced(to, attached=to.memory.attach(sealed)))

    def attach_items(
        self, plan: SegmentPlan, segment: Segment | None, *, to: LoadedBundle
    ) -> Future[bool]:
        """Search posted items through a built segment; the future is as that of `attach`."""
        return self._run_task(
            lambda: self._announced(to, attached=to.memory.attach_items(plan, segment))
        )

    def switch_to(self, loaded: LoadedBundle, *, configured: str = "") -> Future[bool]:
        """Serve another bundle from now on, once its memory holds all that is logged.

        With `configured`, the fingerprint of the bundle that this service was started with, the
        switch is logged, and other processes on the same log follow.
        """
        return self._run_task(lambda: self._switch_to(loaded, configured))

    def rehearse(self) -> Future[bool]:
        """Write a label that is dropped before it is logged, so that the first one is quick."""
        return self._run_task(self._rehearse)

    def close(self) -> None:
        """Write what was admitted, then stop."""
        self._checker.close()
        self._queue.end()
        self._thread.join()

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
        finally:  # also when the thread dies: nobody may wait for ever
            for job in jobs:
                fail(job.future, NotReady("the writer has stopped"))
            self._queue.abandon()

    def _do(self, task: WriterTask) -> bool:
        """Run a task; false where the writer must not go on."""
        try:
            task.future.set_result(task.run())
        except LogCorrupt as error:
            log.error("the label log is damaged", extra={"cause": str(error)})
            fail(task.future, error)
            return False
        except LogError as error:
            self._health.note(unreadable=str(error))
            fail(task.future, error)
        except KeymatchError as error:
            fail(task.future, error)
        except Exception as error:  # a defect: whoever waits must not hang
            log.exception("defect in the writer")
            fail(task.future, error)
            return False
        return True

    def _write_all(self, jobs: Sequence[WriteJob]) -> None:
        """Write jobs and give each future its result or its exception."""
        if not jobs:
            return
        outcomes = self._write(jobs)
        # First: who reads an answer and writes again at once must have a place in the queue.
        self._queue.done(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, KeymatchError):
                fail(job.future, outcome)
            else:
                job.future.set_result(outcome)

    def _write(self, jobs: Sequence[WriteJob]) -> Sequence[Outcome]:
        """Write jobs; returns what became of each."""
        try:
            return self._group_commit.write(jobs)
        except KeymatchError as error:
            # A write that is refused because of damage did not try whether the log can be written.
            if isinstance(error, LogError) and not self.log_damaged:
                self._health.note(unwritable=str(error))
            outcome: Outcome = error
        except Exception:  # a defect: whoever waits must not hang
            log.exception("defect in the writer")
            outcome = LogError("the write failed inside the service")
        # A commit that failed may still have reached the disk: only the log knows.
        self.wake()
        return [outcome] * len(jobs)

    def _rehearse(self) -> bool:
        with suppress(LogError):  # the first write will say so
            self._group_commit.rehearse()
        return False

    def _announced(self, to: LoadedBundle, *, attached: bool) -> bool:
        if attached:
            self._follower.announce(to)
        return attached

    def _switch_to(self, loaded: LoadedBundle, configured: str) -> bool:
        self._follower.read_on(loaded)
        if configured:
            with self._log.exclusive() as appending:
                self._follower.catch_up(loaded, appending)
                change = UseBundle(
                    sequence=appending.last + 1,
                    bundle=loaded.bundle.folder.name,
                    configured=configured,
                )
                appending.append([new_event(change)], encoder=loaded.representer.fingerprint)
            loaded.apply(self._log.read(after=loaded.memory.view.version))
        self._follower.serve(loaded)
        return True

    def _run_task(self, run: Callable[[], bool]) -> Future[bool]:
        task = WriterTask(run=run)
        self._queue.put(task)
        return task.future
