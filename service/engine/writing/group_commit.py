"""Writes several jobs as one commit: plan on a draft, log the changes, publish the view."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from service.core.encoding.representer import EncodedItem
from service.core.errors import KeymatchError, KeyReused
from service.core.label_log import AnsweredRequest, Appending, LabelLog
from service.core.replay import new_event
from service.engine.writing.commit import Commit
from service.engine.writing.log_follower import LogFollower
from service.engine.writing.log_health import LogHealth
from service.engine.writing.write_queue import WriteJob
from service.engine.writing.written import Written, from_document, to_document
from service.telemetry import Telemetry

Outcome = Written | KeymatchError


class GroupCommit:
    """Writes jobs for the writer's thread."""

    def __init__(
        self, label_log: LabelLog, follower: LogFollower, health: LogHealth, telemetry: Telemetry
    ) -> None:
        """Write to this log and to the memory that `follower` says is served."""
        self._log, self._follower = label_log, follower
        self._health, self._telemetry = health, telemetry

    def write(self, jobs: Sequence[WriteJob]) -> list[Outcome]:
        """Log, apply and publish jobs; returns the result of each, or why it alone was refused.

        Raises `LogError` where the log cannot be read or written; then none of them was published.
        """
        loaded, start = self._follower.loaded, perf_counter()
        self._follower.read_if_changed()
        fingerprint = loaded.representer.fingerprint
        with self._log.exclusive() as appending:
            self._follower.catch_up(loaded, appending)
            draft = loaded.memory.draft()
            commit = Commit(
                draft, representer=loaded.representer, require_room=loaded.memory.require_room
            )
            outcomes = [_plan(job, job.encoded_by(fingerprint), commit, appending) for job in jobs]
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
