"""A moment in a label log: a time, or the number of an event."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from service.core.errors import InvalidInput

_FORMS = (
    "a date or time (2026-11-30, 2026-11-30T08:00+01:00; UTC where no zone is given), Unix seconds"
    " after an @ (@1796000000), or the number of an event (1200)"
)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Events count as later from `seconds` (Unix time) on, or from event `sequence` on."""

    sequence: int = 0
    seconds: float = -math.inf

    @classmethod
    def parse(cls, text: str, *, option: str) -> Self:
        """Read what a user wrote; raises `InvalidInput`, which names the option."""
        if text.isascii() and text.isdigit() and len(text) <= 18:
            return cls(sequence=int(text))
        try:
            if text.startswith("@"):
                return cls(seconds=_finite(text[1:]))
            time = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidInput(f"{option} must be {_FORMS}, not {text!r}") from None
        return cls(seconds=(time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())

    def is_reached(self, row: Any) -> bool:
        """Whether the event of a log's `row` was written at this moment or later."""
        return bool(row.sequence >= self.sequence and row.written >= self.seconds)


def _finite(text: str) -> float:
    seconds = float(text)
    if not math.isfinite(seconds):
        raise ValueError(text)
    return seconds
