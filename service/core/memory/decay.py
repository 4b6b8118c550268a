"""Half-lives of clicks: an old click votes with less weight than a new one.

A click that has a time weighs w * 0.5 ** (age / half-life). The age is counted in whole hours, so
answers change at most once per hour. Votes are stored with their weight and their hour, so another
half-life applies to what is stored. A negative pair decays alike. The rows of tables decay by the
same equation (`training.datasets.pair_weights`).

Some rules keep the weights apart:

- A share is at least `LEAST_SHARE`. Smaller ones would end as the smallest float32, and 99 old
  clicks would weigh as much as 1.
- No click is from the future (`can_be_now`): one such click would make all others old.
- A click that arrives late does not replace a newer one of its pair (`is_late`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from service.core.times import NEVER, SECOND
from service.core.types import Doubles, Floats, Indices

HOUR = 3_600 * SECOND
HOURS_A_DAY = 24
FAST_CLOCK_SECONDS = 3_600.0  # by which a client's clock may be ahead
LEAST_SHARE = 2.0**-20  # of a weight; what is left after `MOST_HALF_LIVES`
MOST_HALF_LIVES = 20.0
_SMALLEST = np.finfo(np.float32).smallest_subnormal  # a weight of 0 would have no sign


class Vote(NamedTuple):
    """The weight of one vote of a posted query. It decays from an hour, counted since 1970."""

    weight: float = 1.0
    hour: int = NEVER


PLAIN = Vote()  # the vote of a trained row, and of a click without weight and time


def hour_of(time: int | None) -> int:
    """Return the hour of a time in microseconds; `NEVER` if there is none."""
    return NEVER if time is None else time // HOUR


def share_left(half_lives: Doubles) -> Doubles:
    """Return the share of a weight that is left: 0.5 ** `half_lives`, at least `LEAST_SHARE`."""
    return np.exp2(-np.clip(half_lives, 0.0, MOST_HALF_LIVES))


def can_be_now(seconds: float, *, now: float) -> bool:
    """Whether a clock that may be fast shows a Unix time `now` or earlier, from 1970 on."""
    return 0 <= seconds <= now + FAST_CLOCK_SECONDS


def is_late(vote: Vote, *, known: Vote) -> bool:
    """Whether a click is older than the pair's `known` one; without times it is not."""
    return known.hour != NEVER and vote.hour < known.hour


@dataclass(frozen=True, kw_only=True, slots=True)
class Decay:
    """Reduces the weights of votes by their age at an `hour`; the half-life is in days."""

    hour: int
    half_life: float

    def of(self, weights: Floats, hours: Indices) -> Floats:
        """Return the reduced `weights` [n] of votes from `hours` [n].

        A vote from a later hour keeps its weight.
        """
        if (hours == NEVER).all():
            return weights
        ages = self.hour - hours.astype(np.int64)
        shares = share_left(ages / (HOURS_A_DAY * self.half_life))
        left = weights * shares
        return np.copysign(np.maximum(np.abs(left), _SMALLEST), left).astype(np.float32)
