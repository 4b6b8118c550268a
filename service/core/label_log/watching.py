"""The thread that calls back when any process may have appended to the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from time import monotonic

from service.core.label_log.database import Database

POLL_SECONDS = 0.1  # between two calls while the database sends no signals
LONGEST_PAUSE_SECONDS = 1.0  # between two attempts to receive signals again

log = logging.getLogger("keymatch")


def watch(database: Database, appended: Callable[[], None], stop: threading.Event) -> None:
    """Call `appended` at each signal of the database until `stop` is set; never raises.

    While signals cannot be received, `appended` is called at regular intervals, so that a log that
    can still be read is read. The loss of signals is logged once, and so is its end.
    """
    call = _Call(appended)
    lost, pause = False, POLL_SECONDS
    while not stop.is_set():
        try:
            with closing(database.signals(stop)) as signals:
                for _ in signals:
                    if stop.is_set():
                        return
                    if lost:
                        log.info("the label log is watched again", extra={"log": database.place})
                    lost, pause = False, POLL_SECONDS
                    call()
        except (
            Exception
        ) as error:  # any error, a bug included: a replica must not fall behind silently
            if not lost:
                log.warning(
                    "the label log cannot be watched; it is polled", extra={"reason": str(error)}
                )
            lost = True
            resume = monotonic() + pause
            while monotonic() < resume and not stop.wait(POLL_SECONDS):
                call()
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class _Call:
    """Wraps a callback: its errors do not end the thread, and repeated errors are logged once."""

    def __init__(self, appended: Callable[[], None]) -> None:
        self._appended, self._failing = appended, False

    def __call__(self) -> None:
        try:
            self._appended()
        except Exception:
            if not self._failing:
                log.exception("events that other processes appended could not be applied")
            self._failing = True
        else:
            self._failing = False
