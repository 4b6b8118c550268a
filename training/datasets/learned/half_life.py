"""How much less an old click of a label log counts than a new one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

from service.core.errors import InvalidInput
from service.core.label_log import LabelLog
from training.datasets.pair_weights import DAY
from training.datasets.sparse_rows import SMALLEST


@dataclass(frozen=True, kw_only=True)
class HalfLife:
    """A click counts 0.5 ** (age / days); its age is counted back from `newest`, in Unix time."""

    days: float
    newest: float

    @classmethod
    def of(cls, days: float | None, label_log: LabelLog) -> Self | None:
        """Count ages back from the newest event of a log; None where clicks count alike.

        Raises `InvalidInput` where `days` is no positive number, and as `LabelLog.read`.
        """
        if days is None:
            return None
        require_half_life(days)
        last = label_log.verified(after=max(0, label_log.last_sequence() - 1))
        return cls(days=days, newest=max((row.written for row, _ in last), default=0.0))

    def share(self, row: Any) -> float:
        """What is left of the weight of a click in the log's `row`: above 0, 1 at most.

        An event that was written later, while the log was read, counts in full.
        """
        age = max(0.0, self.newest - row.written) / DAY
        return max(SMALLEST, math.pow(0.5, age / self.days))


def require_half_life(days: float) -> None:
    """Raise `InvalidInput` where `days` is no positive number."""
    if not 0 < days < float("inf"):
        message = f"the half-life must be a positive number of days, not {days}"
        raise InvalidInput(message, field="half_life")
