"""Whether the label log can be used."""

from __future__ import annotations

import logging

log = logging.getLogger("keymatch")


class LogHealth:
    """Why the label log could not be read or written when that was last tried.

    The two are kept apart: a full disk can still be read, so only a write shows that writes succeed
    again.
    """

    def __init__(self) -> None:
        self._unreadable = self._unwritable = ""

    @property
    def cause(self) -> str:
        """Why the log cannot be used; empty where it can, as far as is known."""
        return self._unwritable or self._unreadable

    def note(self, *, unreadable: str | None = None, unwritable: str | None = None) -> None:
        """Remember causes, empty for success and None for not tried; log every turn."""
        before = self.cause
        self._unreadable = self._unreadable if unreadable is None else unreadable
        self._unwritable = self._unwritable if unwritable is None else unwritable
        if self.cause and not before:
            log.error("the label log cannot be used", extra={"cause": self.cause})
        elif before and not self.cause:
            log.info("the label log can be used again")
