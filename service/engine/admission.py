"""Admission: how much may wait for one part of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from service.core.errors import Overloaded


class Admission:
    """Counts the items that wait or are being worked on; belongs to the event loop."""

    def __init__(self, limit: int, *, waiting_items: str) -> None:
        """Admit at most `limit` items at once; `waiting_items` ends the refusal, as in "5 ..."."""
        self.waiting = 0
        self._limit, self._waiting_items = limit, waiting_items

    @contextmanager
    def admit(self, items: int) -> Iterator[None]:
        """Count `items` for the block; raises `Overloaded` when too many would wait.

        More items than the whole limit are admitted when nothing else waits.
        """
        if self.waiting and self.waiting + items > self._limit:
            raise Overloaded(f"{self.waiting} {self._waiting_items}", retry_after=1)
        self.waiting += items
        try:
            yield
        finally:
            self.waiting -= items
