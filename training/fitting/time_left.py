"""How long a candidate of `fit` may train, of the time that is left."""

from __future__ import annotations

from dataclasses import dataclass

from training.fitting.candidate import Candidate
from training.fitting.candidates import INDISPENSABLE, SHARES, WHOLE_ENCODINGS

SHORTEST = 5.0  # seconds of training that are worth a trial
LEAST = 0.1  # of what a trial does beside training: less training would say nothing
STRETCHED = 2.5  # times its share a trial may take where encoding alone takes most of it
RESERVED = 0.5  # of what is left: so much the whole encoder's training must still have


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds that the untrained encoder took, from which those of the others are estimated."""

    encode: float  # all texts of the memory
    choose: float

    def overhead(self, encodings: float, choices: int = 1) -> float:
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
        indispensable candidate gets all that is left; if it is replaceable, only where its steps
        then take at least as long as what it does beside them. Any other gets the shortest time,
        provided that it leaves the indispensable one enough and stays within a multiple of its
        share.
        """
        share = SHARES[candidate.name] * self.seconds
        overhead = self.cost.overhead(candidate.encodings, candidate.choices)
        if share - overhead >= SHORTEST:
            return share - overhead
        left = self.seconds - overhead
        if candidate.name == INDISPENSABLE:
            return left if left >= (overhead if candidate.replaceable else SHORTEST) else 0.0
        shortest = max(SHORTEST, LEAST * overhead)
        if not self._whole_has_time:
            return shortest if left - shortest >= SHORTEST else 0.0
        affordable = overhead + shortest <= STRETCHED * share
        return shortest if affordable and left - shortest >= self._reserve() else 0.0

    @property
    def _whole_has_time(self) -> bool:
        return self.seconds - self.cost.overhead(WHOLE_ENCODINGS) >= SHORTEST

    def _reserve(self) -> float:
        """What the whole encoder needs."""
        of_whole = self.cost.overhead(WHOLE_ENCODINGS)
        return of_whole + RESERVED * (self.seconds - of_whole)
