"""What `fit` knows before a candidate: the data, the hardware, and what was tried.

The batch, the first loss, and what a step may take follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from training.fitting.facts import DataFacts
from training.fitting.memory_need import StepMemory, Transformer, step_memory
from training.fitting.trial import Trial, gain

QUICK, QUICK_ANCE, QUICK_UNIDEC = "rae-quick", "ance-quick", "unidec-quick"
WHOLE, SUPCON, QUICK_LONGER, LONGER = "whole", "supcon", "quick-longer", "longer"
RAE, UNIDEC = "rae", "unidec"  # recipes of the whole encoder, beside `supcon`
LARGEST_BATCH, SMALLEST_BATCH = 1_024, 16
STEPS_PER_EPOCH = 8  # at least, where a batch is smaller than the largest
FEWEST_STEPS = 80  # of the whole encoder in its time, where a smaller batch allows them
PASSES = 4  # a step takes as long as encoding its texts so often
# On average, from which on SupconDE's loss comes first: it counts all labels of a row that are in
# the batch. With 83 a row (moby) it was 6 points of P@1 above RAE-XMC's at equal steps, with few
# labels a row (debian-seealso) below it.
LABELS_A_ROW = 20
CLUSTERING = 0.1  # of its time that the first clusters may take


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a candidate's numbers follow from."""

    facts: DataFacts
    transformer: Transformer
    width: int  # dimensions of each of UniDEC's heads: those of the encoder
    free: int  # bytes of memory
    encoder: str
    seed: int
    trials: Sequence[Trial]  # so far, the untrained encoder first
    seconds_per_text: float = 0.0  # to encode one
    seconds: float = math.inf  # that the candidate may train

    def trial(self, name: str) -> Trial | None:
        """The trial of a candidate, None where it was not tried."""
        return next((trial for trial in self.trials if trial.name == name), None)

    def gained(self, name: str) -> bool:
        """Whether a candidate was tried and is better than the untrained encoder."""
        trial = self.trial(name)
        return trial is not None and gain(trial, self.trials[0]).counts

    @property
    def mined_labels_help(self) -> bool:
        """Whether n-grams against mined labels are at least as good as without.

        Mined labels make steps slower, so in the same short time there were fewer of them.
        """
        with_mined, without = self.trial(QUICK_ANCE), self.trial(QUICK)
        if with_mined is None or not self.gained(QUICK_ANCE):
            return False
        return without is None or with_mined.score >= without.score

    @property
    def classifiers_help(self) -> bool:
        """Whether UniDEC was better than n-grams alone beside the frozen encoder."""
        unidec = self.trial(QUICK_UNIDEC)
        if unidec is None or not self.gained(QUICK_UNIDEC):
            return False
        others = self._tried(QUICK, QUICK_ANCE)
        return all(gain(unidec, other).counts for other in others)

    @property
    def best_quick(self) -> Trial | None:
        """The best trial beside the frozen encoder, None where none gained."""
        gained = filter(self.gained, (QUICK, QUICK_ANCE, QUICK_UNIDEC))
        return max(self._tried(*gained), key=lambda trial: trial.score, default=None)

    @property
    def trials_of_whole(self) -> list[Trial]:
        """The short trials of the whole encoder."""
        return self._tried(WHOLE, SUPCON)

    def _tried(self, *names: str) -> list[Trial]:
        return [trial for trial in map(self.trial, names) if trial is not None]

    @property
    def ngrams_help(self) -> bool:
        """Whether n-grams gained anything beside the frozen encoder."""
        return self.best_quick is not None

    @property
    def loss(self) -> str:
        """The recipe whose loss the whole encoder is tried with first.

        SupconDE's needs clusters, for which all texts are encoded before the first step.
        """
        many = self.facts.pairs >= LABELS_A_ROW * self.facts.labelled
        clustering = self.facts.texts * self.seconds_per_text
        return SUPCON if many and clustering <= CLUSTERING * self.seconds else RAE

    def instances(self, *, texts: int = 0, before: int = 0) -> int:
        """The batch: a power of two, with several steps an epoch on small data.

        Where the whole encoder reads `texts` of each instance in a step, and `before` in all before
        the first one, the batch is so small that slow hardware takes many steps: few large ones
        teach less.
        """
        rows = max(1, self.facts.labelled - self.facts.held_out)
        most = rows / STEPS_PER_EPOCH
        if texts and self.seconds_per_text:
            encoded = self.seconds / self.seconds_per_text - before
            most = min(most, encoded / (PASSES * FEWEST_STEPS * texts))
        most = min(float(LARGEST_BATCH), max(float(SMALLEST_BATCH), most))
        power: int = 2 ** int(math.log2(most))
        return power

    def shared(self, instances: int) -> tuple[str, ...]:
        """The settings that all candidates have, with a batch of so many instances."""
        facts = self.facts
        return (
            f"encoder.name={self.encoder}",
            f"encoder.query_tokens={facts.queries.limit}",
            f"encoder.label_tokens={facts.keywords.limit}",
            f"batch.instances={instances}",
            f"validation.rows={facts.held_out}",
            "validation.drawn=texts",
            "validation.checks=1",
            "validation.untrained=false",
            f"seed={self.seed}",
        )

    def memory(self, *, instances: int, positives: int) -> StepMemory:
        """What keeps a step of the whole encoder within the free memory."""
        return step_memory(
            self.facts,
            self.transformer,
            instances=instances,
            positives=positives,
            free=self.free,
        )
