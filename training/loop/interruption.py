"""Handles SIGINT and SIGTERM in training: the run ends as soon as its state can be saved.

A second signal ends it at once. Signals within a second count as one: after Ctrl-C, processes get
the signal from the terminal and again from `torchrun`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from types import FrameType

from service.command_line import Interrupted, signals_handled

TOGETHER = 1.0  # seconds in which signals count as one
_NOTICE = b"interrupted: what was reached is saved first; once more to stop at once\n"


class Interruption:
    """Stores the signal that was received as `number`; 0 if there was none."""

    def __init__(self) -> None:
        self.number = 0
        self._is_noted = False
        self._received = 0.0

    def handled(self) -> AbstractContextManager[None]:
        """Raise `Interrupted` at a signal within the block; outside the main thread, do nothing."""
        return signals_handled(self._receive)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Only note the first signal within the block; the block must check `number`."""
        self._is_noted = True
        try:
            yield
        finally:
            self._is_noted = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.number and monotonic() - self._received < TOGETHER:
            return
        if not self._is_noted or self.number:
            raise Interrupted(number)
        self.number, self._received = number, monotonic()
        os.write(2, _NOTICE)  # unbuffered, since the block may be writing to Python's buffers
