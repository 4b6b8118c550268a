"""Verifies the whole label log from time to time, to find damage before the next start.

Each walk opens the log again, as a start does: pages cached in this process may differ from the
file. If another program seems to have written to the file, a walk begins at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from time import monotonic, thread_time

from service.core.errors import LogCut, LogError
from service.core.label_log import LabelLog, open_log
from service.core.label_log.database import means_damage
from service.core.processes.resources import give_back_free_pages

EVENTS_AT_ONCE = 200  # verified without a pause, in some milliseconds
SHARE = 0.02  # most CPU time of a walk, as a share of one core
HURRIED_SHARE = 0.25  # the same if another program has written to the file
LOOK_SECONDS = 0.1  # between two checks for such a write

log = logging.getLogger("keymatch")


class LogChecker:
    """A thread that verifies every event, then waits for `pause` seconds, and begins again."""

    def __init__(self, label_log: LabelLog, *, pause: float, found: Callable[[str], None]) -> None:
        """Start the thread; a `pause` of 0 starts none.

        After each complete walk `found` is called with the error found, or with an empty string.
        """
        self._log, self._pause, self._found = label_log, pause, found
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-checker", daemon=True)
        if pause:
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                share = self._wait()
                if self._walk(share):
                    self._found("")
            except LogCut:  # the log was cut meanwhile: walk again
                continue
            except LogError as error:
                if means_damage(error):
                    log.error("the label log is damaged", extra={"cause": str(error)})
                    self._found(str(error))
            except Exception:  # a defect here must not stop the service
                log.exception("defect in the check of the label log")
                self._closing.wait(self._pause)
            give_back_free_pages()  # the walk's rows and pages, some megabytes

    def _wait(self) -> float:
        """Wait until a walk is due; returns its share of a core."""
        due = monotonic() + self._pause
        while (left := due - monotonic()) > 0:
            if self._closing.wait(min(left, LOOK_SECONDS)):
                break
            if self._touched():
                return HURRIED_SHARE
        return SHARE

    def _touched(self) -> bool:
        touched = self._log.touched()
        if touched:
            log.warning("another program has written to the label log, which is read at once")
        return touched

    def _walk(self, share: float) -> bool:
        """Verify all events; returns false if `close` ended the walk early.

        Raises `LogCorrupt`, `LogReplaced`, or `LogError` if the log cannot be read.
        """
        if self._closing.is_set():
            return False
        known = self._log.known
        with closing(open_log(self._log.state, create=False)) as opened:
            start = thread_time()
            for number, _ in enumerate(opened.verified(after=opened.cut()), start=1):
                if number % EVENTS_AT_ONCE == 0:
                    if self._closing.wait((thread_time() - start) / share):
                        return False
                    if share < HURRIED_SHARE and self._touched():
                        return self._walk(HURRIED_SHARE)
                    start = thread_time()
            if known is not None:
                opened.require(known, knows="this process has written or read")
        return True
