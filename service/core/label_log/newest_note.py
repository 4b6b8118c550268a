"""The note `labels.newest` next to a SQLite log: which event the log had reached.

If a file is removed or replaced by an older copy while no process has it open, it looks like any
other log. The note names the log and the link of one of its newest events, so the next start
notices what is missing. It is written within a second after a commit, at most once a second, and
only about events that were acknowledged. To restore an older log on purpose, remove the note.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import orjson

from service.core.errors import LogError
from service.core.label_log.rows import Link

FILE_NAME = "labels.newest"
SECONDS = 1.0  # the shortest time between two writes of the note

log = logging.getLogger("keymatch")


class NewestNote:
    """Reads and writes the note in a state folder."""

    def __init__(self, folder: Path, *, place: str) -> None:
        """Use the note in `folder`; messages call the log `place`."""
        self._path, self._place = folder / FILE_NAME, place
        self._due = 0.0  # in the time of `monotonic`
        self._lock = threading.Lock()
        self._waiting: tuple[str, Link] | None = None  # the note to write when it is due
        self._timer: threading.Timer | None = None

    def require_reached(
        self, log_id: str | None, holds: Callable[[Link], bool] = lambda link: False
    ) -> None:
        """Raise `LogError` unless the log `log_id` (None: no log) `holds` the event of the note."""
        noted_id, link = self._read() or (None, None)
        if link is None or (noted_id == log_id and holds(link)):
            return
        now = "does not hold it" if noted_id == log_id else "is another log"
        raise LogError(
            f"{self._place} {'is gone' if log_id is None else now}, but event {link.sequence} was"
            f" written here: put the file that holds it back, or remove {self._path} to go on"
            " without it"
        )

    def write(self, log_id: str, link: Link, *, at_once: bool = False) -> None:
        """Note a committed event `at_once` or within a second, unless a later one comes first."""
        with self._lock:
            wait = self._due - monotonic()
            if wait <= 0 or at_once:
                self._write(log_id, link)
                return
            self._waiting = log_id, link
            if self._timer is None:
                self._timer = threading.Timer(wait, self._write_waiting)
                self._timer.name, self._timer.daemon = "newest-note", True
                try:
                    self._timer.start()
                except RuntimeError:  # no thread can be started: the next commit tries again
                    self._timer = None

    def close(self) -> None:
        """Write nothing from now on."""
        with self._lock:
            self._waiting = None
            if self._timer is not None:
                self._timer.cancel()

    def _write_waiting(self) -> None:
        with self._lock:
            self._timer = None
            if self._waiting is not None:
                self._write(*self._waiting)

    def _write(self, log_id: str, link: Link) -> None:
        self._due, self._waiting = monotonic() + SECONDS, None
        noted_id, noted = self._read() or ("", link)
        if noted_id == log_id and noted.sequence >= link.sequence:
            return
        document = {"log": log_id, "sequence": link.sequence, "chain": link.chain.hex()}
        partial = self._path.with_name(f".{FILE_NAME}.partial-{threading.get_native_id()}")
        try:
            # Not synced: after a power failure, an older note or none is also correct.
            partial.write_bytes(orjson.dumps(document))
            partial.replace(self._path)
        except OSError as error:
            log.warning(
                "the note of the newest event cannot be written", extra={"cause": str(error)}
            )

    def _read(self) -> tuple[str, Link] | None:
        """Return the log id and event in the note; None if there is no readable note."""
        try:
            note = orjson.loads(self._path.read_bytes())
            link = Link(sequence=int(note["sequence"]), chain=bytes.fromhex(note["chain"]))
            return str(note["log"]), link
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the note of the newest event cannot be read", extra={"cause": str(error)})
            return None
