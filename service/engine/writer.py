"""The single writer of a process: label log first, then live rows, then one published view.

All jobs that wait when the writer turns to its queue share one commit (group commit). What other
processes wrote to the same log is applied before, in the log's order. Every job's future gets its
result or its exception, also when the writer stops.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import perf_counter

from service.core.encoding.representer import EncodedItem
from service.core.errors import KeymatchError, KeyReused, LogCorrupt, LogError, NotReady
from service.core.index.protocol import Segment
from service.core.label_log import AnsweredRequest, Appending, LabelLog
from service.core.memory.compaction import SegmentPlan
from service.core.replay import bundle_event
from service.core.types import Event
from service.engine.loaded_bundle import Serving
from service.engine.write_operations import Commit, Written, from_document, to_document
from service.engine.write_queue import Errand, Job, JobQueue, fail
from service.telemetry import Telemetry

log = logging.getLogger("keymatch")


class Writer:
    """Owns the right to change the memory; `serving` is what it publishes to."""

    def __init__(
        self,
        *,
        log: LabelLog,
        serving: Serving,
        telemetry: Telemetry,
        queue_items: int,
        published: Callable[[Serving], None],
        wished: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """Start the thread.

        `published` is called from it after each new view, `wished` when another process has put
        another bundle in the place of this one.
        """
        self._log, self._serving, self._telemetry = log, serving, telemetry
        self._published, self._wished = published, wished
        self._newest = serving.memory.view.version  # of the log, as far as is known
        self._jobs = JobQueue(queue_items)
        self._woken = threading.Event()
        # Why the log could not be read, or written, when that was last tried: a full disk can be
        # read, so only a write shows that writes succeed again.
        self._unreadable = self._unwritable = ""
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether writes can still succeed."""
        return not self._jobs.closed and self._thread.is_alive()

    @property
    def failing(self) -> str:
        """Why the log cannot be used, as far as is known; empty where it can."""
        return self._unwritable or self._unreadable

    @property
    def lag(self) -> int:
        """Logged events that the memory does not show yet."""
        return max(0, self._newest - self._serving.memory.view.version)

    def submit(self, job: Job) -> Future[Written]:
        """Queue a job; its future resolves once it is synced and visible.

        Raises `Overloaded` when too much waits, `NotReady` when the writer has stopped.
        """
        self._jobs.put(job)
        return job.future

    def wake(self) -> None:
        """Look into the log soon: somebody may have written."""
        if not self._woken.is_set():
            self._woken.set()
            with suppress(NotReady):  # who has stopped need not look
                self._jobs.put(Errand(run=self._look))

    def attach(self, plan: SegmentPlan, segment: Segment | None, *, to: Serving) -> Future[bool]:
        """Put a built segment in the place of its rows; false where it is no longer wanted."""
        return self._errand(lambda: self._attach(plan, segment, to))

    def exchange(self, serving: Serving, *, configured: str = "") -> Future[bool]:
        """Publish to another bundle's memory from now on, once it holds all that is logged.

        With `configured`, the fingerprint of the bundle that this service was started with, the
        exchange is logged, and other processes follow.
        """
        return self._errand(lambda: self._exchange(serving, configured))

    def close(self) -> None:
        """Write what was admitted, then stop."""
        self._jobs.end()
        self._thread.join()

    # The thread --------------------------------------------------------------------------

    def _run(self) -> None:
        jobs: list[Job] = []
        running = True
        try:
            while running:
                jobs, errand, running = self._jobs.take()
                running = self._write_all(jobs) and running
                jobs = []
                if errand is not None:
                    running = self._do(errand) and running
        finally:  # also when the thread dies: nobody may wait for it
            for job in jobs:
                fail(job.future, NotReady("the writer has stopped"))
            self._jobs.abandon()

    def _do(self, errand: Errand) -> bool:
        """Run an errand; false where the writer must not go on."""
        try:
            errand.future.set_result(errand.run())
        except LogCorrupt as error:
            log.error("the label log is damaged", extra={"cause": str(error)})
            fail(errand.future, error)
            return False
        except LogError as error:
            self._note(unreadable=str(error))
            fail(errand.future, error)
        except KeymatchError as error:
            fail(errand.future, error)
        except Exception as error:  # a defect: whoever waits must not hang
            log.exception("defect in the writer")
            fail(errand.future, error)
            return False
        return True

    def _write_all(self, jobs: Sequence[Job]) -> bool:
        """Write jobs and answer each; false where the writer must not go on."""
        if not jobs:
            return True
        try:
            self._write(jobs)
        except KeymatchError as error:
            if isinstance(error, LogError):
                self._note(unwritable=str(error))
            for job in jobs:
                fail(job.future, error)
            # A commit that failed may still have reached the disk: only the log knows.
            self.wake()
        except Exception:  # a defect: callers must not hang
            log.exception("defect in the writer")
            for job in jobs:
                fail(job.future, LogError("the write failed inside the service"))
            self.wake()
        finally:
            self._jobs.done(jobs)
        return True

    def _write(self, jobs: Sequence[Job]) -> None:
        """Log, apply and publish jobs as one commit; then answer each."""
        serving, start = self._serving, perf_counter()
        self._look()
        with self._log.exclusive() as appending:
            self._catch_up(serving, appending)
            draft = serving.memory.draft()
            commit = Commit(
                draft, representer=serving.representer, room=serving.memory.require_room
            )
            encoder_fingerprint = serving.representer.fingerprint
            answers = [
                self._plan(job, job.encoded_by(encoder_fingerprint), commit, appending)
                for job in jobs
            ]
            appending.append(commit.events, encoder=encoder_fingerprint)
        committed = perf_counter()
        if commit.events:
            self._note(unreadable="", unwritable="")
            self._newest = commit.version
            serving.memory.publish(draft)
            self._telemetry.batch_size.labels("commit").observe(len(commit.events))
            self._telemetry.observe_stages(
                {"log_commit": committed - start, "publish": perf_counter() - committed}
            )
            self._published(serving)
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, KeymatchError):
                job.future.set_exception(answer)
            else:
                job.future.set_result(answer)

    def _plan(
        self,
        job: Job,
        encoded_items: Sequence[EncodedItem | None],
        commit: Commit,
        appending: Appending,
    ) -> Written | KeymatchError:
        """Add a job to the commit, or find what was answered to it before."""
        request = job.request
        known = appending.answered(request.key) if request else None
        if request and known:
            if known.digest != request.digest:
                return KeyReused("this idempotency key came with another request before")
            return from_document(known.version, known.answer)
        try:
            written = job.operation.plan(commit, encoded_items)
        except KeymatchError as error:  # this job's own fault, found before it changed anything
            return error
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

    def _look(self) -> bool:
        """Apply what others have logged, without the log's lock."""
        if self._woken.is_set():
            self._woken.clear()
            self._follow(self._serving, self._log.read(after=self._serving.memory.view.version))
            self._note(unreadable="")
        return True

    def _catch_up(self, serving: Serving, appending: Appending) -> None:
        """Apply what others have logged up to the lock."""
        version = serving.memory.view.version
        if appending.last > version:
            self._follow(serving, appending.read(after=version))

    def _follow(self, serving: Serving, events: Iterator[Event]) -> None:
        before = serving.memory.view.version
        wish = serving.follow(events)
        if serving.memory.view.version == before:
            return
        self._newest = max(self._newest, serving.memory.view.version)
        if serving is self._serving:
            self._published(serving)
        if wish is not None:
            self._wished(wish)

    def _attach(self, plan: SegmentPlan, segment: Segment | None, to: Serving) -> bool:
        attached = to.memory.attach(plan, segment)
        if attached and to is self._serving:
            self._published(to)
        return attached

    def _exchange(self, serving: Serving, configured: str) -> bool:
        memory = serving.memory
        self._follow(serving, self._log.read(after=memory.view.version))
        if configured:
            with self._log.exclusive() as appending:
                self._catch_up(serving, appending)
                folder = serving.bundle.folder.name
                appending.append(
                    [bundle_event(bundle=folder, configured=configured)],
                    encoder=serving.representer.fingerprint,
                )
            serving.follow(self._log.read(after=memory.view.version))
        self._newest = max(self._newest, memory.view.version)
        self._serving = serving
        self._published(serving)
        return True

    def _errand(self, run: Callable[[], bool]) -> Future[bool]:
        errand = Errand(run=run)
        self._jobs.put(errand)
        return errand.future

    def _note(self, *, unreadable: str | None = None, unwritable: str | None = None) -> None:
        """Remember whether the log can be used, and say so when that changes."""
        was = self.failing
        self._unreadable = self._unreadable if unreadable is None else unreadable
        self._unwritable = self._unwritable if unwritable is None else unwritable
        if self.failing and not was:
            log.error("the label log cannot be used", extra={"cause": self.failing})
        elif was and not self.failing:
            log.info("the label log can be used again")
