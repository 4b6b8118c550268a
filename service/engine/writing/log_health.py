"""Whether the label log can be used."""

from __future__ import annotations

import logging

from service.core.errors import LogCorrupt

log = logging.getLogger("keymatch")


class LogHealth:
    """Why the label log could not be read or written when that was last tried, or is damaged.

    The three are kept apart: a full disk can still be read, so only a write shows that writes
    succeed again, and only a walk over the whole log that it is whole.
    """

    def __init__(self) -> None:
        self._unreadable = self._unwritable = self.damage = ""

    @property
    def cause(self) -> str:
        """Why the log cannot be used; empty where it can, as far as is known."""
        return self.damage or self._unwritable or self._unreadable

    def require_whole(self) -> None:
        """Raise `LogCorrupt` where the log is damaged: the next start would refuse it."""
        if self.damage:
            raise LogCorrupt(self.damage)

    def note(
        self,
        *,
        unreadable: str | None = None,
        unwritable: str | None = None,
        damage: str | None = None,
    ) -> None:
        """Remember causes, empty for success and None for not tried; log every turn."""
        before = self.cause
        self._unreadable = self._unreadable if unreadable is None else unreadable
        self._unwritable = self._unwritable if unwritable is None else unwritable
        self.damage = self.damage if damage is None else damage
        if self.cause and not before:
            log.error("the label log cannot be used", extra={"cause": self.cause})
        elif before and not self.cause:
            log.info("the label log can be used again")
