"""Half-lives of clicks: an old click votes with less weight than a new one.

A click that has a time weighs w * 0.5 ** (age / half-life). The age is counted in whole hours, so
answers change at most once per hour. Votes are stored with their weight and their hour, so another
half-life applies to what is stored. A negative pair decays alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from service.core.times import SECOND
from service.core.types import Floats, Indices

HOUR = 3_600 * SECOND
HOURS_A_DAY = 24
NEVER = 2**31 - 1  # instead of the hour of a vote: its weight does not decay
_SMALLEST = np.finfo(np.float32).smallest_subnormal  # a weight of 0 would have no sign


class Vote(NamedTuple):
    """The weight of one vote of a posted query. It decays from an hour, counted since 1970."""

    weight: float = 1.0
    hour: int = NEVER


PLAIN = Vote()  # the vote of a trained row, and of a click without weight and time


def hour_of(time: int | None) -> int:
    """Return the hour of a time in microseconds; `NEVER` if there is none."""
    return NEVER if time is None else time // HOUR


@dataclass(frozen=True, kw_only=True, slots=True)
class Decay:
    """Reduces the weights of votes by their age at an `hour`; the half-life is in days."""

    hour: int
    half_life: float

    def of(self, weights: Floats | None, hours: Indices | None) -> Floats | None:
        """Return the reduced `weights` [n] of votes from `hours` [n].

        None stands for weights of 1, and for hours that are all `NEVER`. A vote from a later hour
        keeps its weight.
        """
        if hours is None:
            return weights
        ages = np.maximum(self.hour - hours.astype(np.int64), 0)
        shares = np.exp2(ages / -(HOURS_A_DAY * self.half_life))
        left = shares if weights is None else weights * shares
        return np.copysign(np.maximum(np.abs(left), _SMALLEST), left).astype(np.float32)
