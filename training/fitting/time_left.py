"""How long a candidate of `fit` may train, of the time that is left."""

from __future__ import annotations

from dataclasses import dataclass

from training.fitting.candidates import (
    INDISPENSABLE,
    SHARES,
    WHOLE_ENCODINGS,
    Candidate,
)

SHORTEST = 5.0  # seconds of training that are worth a trial
RESERVED = 0.5  # of what is left: so much the whole encoder's training must still have


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds that the untrained encoder took, from which those of the others are estimated."""

    encode: float  # all texts of the memory
    choose: float

    def overhead(self, encodings: int, choices: int = 1) -> float:
        """Seconds of a candidate beside its steps: how often it encodes all texts, and chooses."""
        return encodings * self.encode + choices * self.choose


@dataclass(frozen=True, kw_only=True)
class TimeLeft:
    """What is left for each split, in seconds."""

    seconds: float
    cost: Cost

    def of(self, candidate: Candidate) -> float:
        """What a candidate may train on each split; 0 where it is not worth a trial.

        That is its share, without what it does beside its steps. Where this is too short, the
        indispensable candidate gets all that is left, and any other the shortest time, provided
        that it leaves the indispensable one enough.
        """
        overhead = self.cost.overhead(candidate.encodings, candidate.choices)
        of_share = SHARES[candidate.name] * self.seconds - overhead
        if of_share >= SHORTEST:
            return of_share
        left = self.seconds - overhead
        if candidate.name == INDISPENSABLE:
            return left if left >= SHORTEST else 0.0
        return SHORTEST if left - SHORTEST >= self._reserve() else 0.0

    def _reserve(self) -> float:
        """What the whole encoder needs; where it has no time in any case, twice the shortest."""
        of_whole = self.cost.overhead(WHOLE_ENCODINGS)
        if self.seconds - of_whole < SHORTEST:
            return 2.0 * SHORTEST
        return of_whole + RESERVED * (self.seconds - of_whole)
