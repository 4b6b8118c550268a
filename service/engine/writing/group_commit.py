"""Writes several jobs as one commit: plan on a draft, log the changes, publish the view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter, thread_time

from service.core.changes import Item
from service.core.encoding.representer import EncodedItem
from service.core.errors import KeymatchError, KeyReused
from service.core.label_log import AnsweredRequest, Appending, LabelLog
from service.core.replay import new_event, texts_of
from service.core.types import NewLabel
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.commit import Commit
from service.engine.writing.log_follower import LogFollower
from service.engine.writing.log_health import LogHealth
from service.engine.writing.operations import PutLabels, changed
from service.engine.writing.write_queue import WriteJob
from service.engine.writing.written import Written, from_document, to_document
from service.telemetry import Telemetry

Outcome = Written | KeymatchError


class _Dropped(Exception):
    """Ends a transaction that must leave nothing."""


class GroupCommit:
    """Writes jobs for the writer's thread."""

    def __init__(
        self,
        label_log: LabelLog,
        follower: LogFollower,
        health: LogHealth,
        telemetry: Telemetry,
        *,
        encoding_took: Callable[[float], None],
    ) -> None:
        """Write to this log and to the memory that `follower` says is served.

        `encoding_took` is called with the processor seconds of encoding.
        """
        self._log, self._follower = label_log, follower
        self._health, self._telemetry = health, telemetry
        self._encoding_took = encoding_took

    def write(self, jobs: Sequence[WriteJob]) -> list[Outcome]:
        """Log, apply and publish jobs; returns the result of each, or why it alone was refused.

        Raises `LogError` where the log cannot be read or written; then none of them was published.
        """
        self._health.require_whole()
        loaded = self._follower.loaded
        self._follower.read_if_changed()
        fingerprint = loaded.representer.fingerprint
        encoded = self._encoded(jobs, loaded)  # before the log's lock is taken
        start = perf_counter()
        with self._log.exclusive() as appending:
            self._follower.catch_up(loaded, appending)
            draft = loaded.memory.draft()
            commit = Commit(
                draft, representer=loaded.representer, require_room=loaded.memory.require_room
            )
            outcomes = [
                _plan(job, encoded_items, commit, appending)
                for job, encoded_items in zip(jobs, encoded, strict=True)
            ]
            events = [new_event(change) for change in commit.changes]
            appending.append(events, encoder=fingerprint)
        committed = perf_counter()
        if events:
            self._health.note(unreadable="", unwritable="")
            self._follower.newest = commit.version
            loaded.memory.publish(draft)
            self._telemetry.batch_size.labels("commit").observe(len(events))
            self._telemetry.observe_stages(
                {"log_commit": committed - start, "publish": perf_counter() - committed}
            )
            self._follower.announce(loaded)
        return outcomes

    def rehearse(self) -> None:
        """Do all that a write does with a label, and drop it before it is logged.

        First calls compile statements and allocate memory, some 50 ms that no client should wait
        for. Raises `LogError` where the log cannot be written.
        """
        loaded = self._follower.loaded
        label = NewLabel(id="warm-up", text="warm-up")
        job = WriteJob(
            operation=PutLabels(labels=(label,)), encoded_items=[None], encoder_fingerprint=""
        )
        [encoded_items] = self._encoded([job], loaded)
        with suppress(_Dropped), self._log.exclusive() as appending:
            draft = loaded.memory.draft()
            commit = Commit(draft, representer=loaded.representer, require_room=lambda *_: None)
            _plan(job, encoded_items, commit, appending)
            appending.append(
                [new_event(change) for change in commit.changes],
                encoder=loaded.representer.fingerprint,
            )
            draft.view()
            raise _Dropped

    def _encoded(
        self, jobs: Sequence[WriteJob], loaded: LoadedBundle
    ) -> list[list[EncodedItem | None]]:
        """The encoded items of each job; None only where an item seems to change nothing."""
        start, labels = thread_time(), loaded.memory.view.labels
        encoded = [list(job.encoded_by(loaded.representer.fingerprint)) for job in jobs]
        missing: list[tuple[list[EncodedItem | None], int, Item]] = []
        for job, encoded_items in zip(jobs, encoded, strict=True):
            if None not in encoded_items:
                continue
            new = {id(item) for item in changed(job.operation.items, labels)}
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


def _plan(
    job: WriteJob,
    encoded_items: Sequence[EncodedItem | None],
    commit: Commit,
    appending: Appending,
) -> Outcome:
    """Add a job's changes to the commit, or return the answer that its idempotency key got before.

    An error that is returned concerns this job alone, and none of its changes was added.
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
        # The frames hold the job, whose future will hold the error: a cycle that would keep a large
        # request until the garbage collector stops all threads to free many of them.
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
