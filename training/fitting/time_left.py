"""How long a candidate of `fit` may train within the remaining time, and the deadline itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from types import FrameType

from training.fitting.candidates import INDISPENSABLE, SHARES, WHOLE_ENCODINGS, Candidate

SHORTEST = 5.0  # seconds of training below which a trial is not worthwhile
LEAST = 0.1  # training time relative to the trial's other work: less training would show nothing
STRETCHED = 2.5  # if encoding takes most of its share, a trial may take this multiple of the share
RESERVED = 0.5  # share of the remaining time that is kept for training the whole encoder


class OutOfTime(KeyboardInterrupt):
    """The deadline has passed. Libraries let a KeyboardInterrupt pass: it is no error of theirs."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in the block once it has run for `seconds`.

    Only the main thread receives signals; in any other thread, only a deadline that has already
    passed is noticed. An alarm that was set before stays set.
    """
    if seconds <= 0:
        raise OutOfTime
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    began = monotonic()
    handler = signal.signal(signal.SIGALRM, _ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            left = max(left - (monotonic() - began), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


def _ring(number: int, frame: FrameType | None) -> None:
    raise OutOfTime


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Measured seconds of the first encoder, from which the candidates' times are estimated.

    `slowness` is the wall time of the choices relative to their CPU time: other programs use the
    machine as well. `opening` is the shortest time that a candidate took before its steps, and
    `extra` the time that the last one took after them beyond the estimate.
    """

    encode: float  # for all texts of the memory
    choose: float
    slowness: float = 1.0
    opening: float = 0.0
    extra: float = 0.0

    def overhead(self, encodings: float, choices: int = 1) -> float:
        """Seconds of a candidate besides its steps, for encoding all texts and for its choices."""
        return self.opening + self.closing(encodings, choices)

    def closing(self, encodings: float, choices: int = 1) -> float:
        """Seconds of a candidate after its steps."""
        return self.extra + encodings * self.encode + choices * self.choose


def training_seconds(candidate: Candidate, left: float, cost: Cost) -> float:
    """Return the seconds that a candidate may train on each split; 0 if it gets no trial.

    `left` seconds remain for each split. A candidate may train for its share minus its overhead,
    the work besides its steps. If that is too short, the indispensable candidate gets all that is
    left. A replaceable candidate must train at least as long as its overhead takes. Any other gets
    the shortest time, if it leaves the indispensable one enough and stays within a multiple of its
    share.
    """
    share = SHARES[candidate.name] * left
    overhead = cost.overhead(candidate.encodings, candidate.choices)
    if share - overhead >= SHORTEST:
        return share - overhead
    rest = left - overhead
    if candidate.name == INDISPENSABLE:
        return rest if rest >= (overhead if candidate.replaceable else SHORTEST) else 0.0
    shortest = max(SHORTEST, LEAST * overhead)
    of_whole = cost.overhead(WHOLE_ENCODINGS)
    if left - of_whole < SHORTEST:
        return shortest if rest - shortest >= SHORTEST else 0.0
    affordable = overhead + shortest <= STRETCHED * share
    reserve = of_whole + RESERVED * (left - of_whole)  # time kept for the whole encoder
    return shortest if affordable and rest - shortest >= reserve else 0.0
