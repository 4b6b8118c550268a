"""The candidates that `fit` tries, in order, and how their settings follow from the situation.

The situation is what `fit` knows before a candidate: the data, the hardware, and earlier trials.
The learning rates were measured on two data sets (`training/recipes`). They are scaled to the batch
size, and the number of epochs to the time that is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from training.fitting.facts import DataFacts, Transformer, step_memory
from training.fitting.trial import Trial, gain
from training.selection.memory_choices import HUBS, WORDS
from training.selection.validation import SAMPLED

QUICK, QUICK_ANCE, QUICK_UNIDEC = "rae-quick", "ance-quick", "unidec-quick"
WHOLE, SUPCON, QUICK_LONGER, LONGER = "whole", "supcon", "quick-longer", "longer"
RAE, UNIDEC = "rae", "unidec"  # recipes of the whole encoder, next to `supcon`
LARGEST_BATCH, SMALLEST_BATCH = 1_024, 16
STEPS_PER_EPOCH = 8  # at least, if a batch is smaller than the largest
FEWEST_STEPS = 80  # at least, for the whole encoder in its time, if a smaller batch allows it
PASSES = 4  # a training step takes as long as encoding its texts this many times
# From this mean number of labels per row on, SupconDE's loss is tried first: it counts all labels
# of a row that are in the batch. With 83 per row (moby) it was 6 points of P@1 above RAE-XMC's at
# equal steps; with few labels per row (debian-seealso) it was below.
LABELS_A_ROW = 20
CLUSTERING = 0.1  # the largest share of its time that the first clustering may take


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What `fit` knows when it chooses a candidate's settings."""

    facts: DataFacts
    transformer: Transformer
    width: int  # dimensions of each of UniDEC's heads, equal to the encoder's
    free: int  # free memory in bytes
    encoder: str
    seed: int
    trials: Sequence[Trial]  # the trials so far; the untrained encoder is the first
    seconds_per_text: float = 0.0  # to encode one text
    seconds: float = math.inf  # training time of the candidate

    def trial(self, name: str) -> Trial | None:
        """The trial of a candidate; None if it was not tried."""
        return next((trial for trial in self.trials if trial.name == name), None)

    def gained(self, name: str) -> bool:
        """Whether a candidate was tried and is better than the untrained encoder."""
        trial = self.trial(name)
        return trial is not None and gain(trial, self.trials[0]).counts

    @property
    def mined_labels_help(self) -> bool:
        """Whether n-grams trained with mined labels are at least as good as those without.

        Mined labels make steps slower, so fewer steps fit into the same time.
        """
        with_mined, without = self.trial(QUICK_ANCE), self.trial(QUICK)
        if with_mined is None or not self.gained(QUICK_ANCE):
            return False
        return without is None or with_mined.score >= without.score

    @property
    def classifiers_help(self) -> bool:
        """Whether UniDEC was better than n-grams alone alongside the frozen encoder."""
        unidec = self.trial(QUICK_UNIDEC)
        if unidec is None or not self.gained(QUICK_UNIDEC):
            return False
        others = self._tried(QUICK, QUICK_ANCE)
        return all(gain(unidec, other).counts for other in others)

    @property
    def best_quick(self) -> Trial | None:
        """The best trial alongside the frozen encoder; None if none gained."""
        gained = filter(self.gained, (QUICK, QUICK_ANCE, QUICK_UNIDEC))
        return max(self._tried(*gained), key=lambda trial: trial.score, default=None)

    @property
    def trials_of_whole(self) -> list[Trial]:
        """The short trials that trained the whole encoder."""
        return self._tried(WHOLE, SUPCON)

    def _tried(self, *names: str) -> list[Trial]:
        return [trial for trial in map(self.trial, names) if trial is not None]

    @property
    def ngrams_help(self) -> bool:
        """Whether n-grams gained anything alongside the frozen encoder."""
        return self.best_quick is not None

    @property
    def loss(self) -> str:
        """The recipe whose loss is tried first for the whole encoder.

        SupconDE's loss needs clusters, so all texts are encoded before the first step.
        """
        many = self.facts.pairs >= LABELS_A_ROW * self.facts.labelled
        clustering = self.facts.texts * self.seconds_per_text
        return SUPCON if many and clustering <= CLUSTERING * self.seconds else RAE

    def instances(self, *, texts: int = 0, before: int = 0) -> int:
        """Return the batch size: a power of two that gives several steps per epoch on small data.

        The whole encoder reads `texts` texts per instance in each step, and `before` texts before
        the first step. Slow hardware gets a smaller batch, since few large steps teach less.
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
        """The settings that all candidates share, for batches of `instances` instances."""
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
            f"validation.words=[{', '.join(f'{words:g}' for words in WORDS)}]",
            f"validation.hubs=[{', '.join(f'{share:g}' for share in HUBS)}]",
            f"seed={self.seed}",
        )


UNIDEC_CHOICES = 4  # longer vectors, eleven weights of the heads, keys with and without classifiers
MOST_EPOCHS = 40


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A recipe, the settings that fit the data, and a summary in words."""

    name: str
    recipe: str
    summary: str
    settings: tuple[str, ...]  # table.key=value
    encodings: float = 1.0  # how often it encodes all texts, in addition to its training steps
    choices: int = 1  # time for its choices on held-out rows, relative to choosing for one vector
    replaceable: bool = False  # if its time is too short, another candidate may use it better


Proposal = Callable[[Situation], Candidate | None]


def heads(situation: Situation) -> tuple[str, ...]:
    """UniDEC's heads, both as wide as the encoder. Novel labels are represented by their texts."""
    return (
        f"heads.encoder={situation.width}",
        f"heads.classifier={situation.width}",
        "system.choose_novel=false",
    )


# N-grams and heads take a fiftieth of the time that encoding takes. One text in a hundred is
# encoded again because it is longer than the token limit.
FROZEN_ENCODINGS = 0.05
CLICKS_A_LABEL = 2  # mean number of clicks per label that classifiers need
FEW_LABELS = 2  # relative to the batch size: with fewer labels, a batch already holds most of them
FIRST_EPOCHS = MOST_EPOCHS / 2  # for the short trials


def quick(situation: Situation) -> Candidate:
    """Character n-grams alongside the frozen encoder."""
    return _ngrams(situation, QUICK, summary="n-grams beside the frozen encoder")


def quick_ance(situation: Situation) -> Candidate | None:
    """Return `quick` with mined labels; None if a batch already holds nearly all labels."""
    if situation.facts.labels < FEW_LABELS * situation.instances():
        return None
    return _ngrams(situation, QUICK_ANCE, summary="the same against mined labels")


def quick_unidec(situation: Situation) -> Candidate | None:
    """Return `quick` with classifiers; None if labels have too few clicks to learn them from."""
    facts = situation.facts
    if facts.pairs < CLICKS_A_LABEL * facts.labels:
        return None
    return _unidec(
        situation,
        name=QUICK_UNIDEC,
        summary="n-grams and classifiers beside the frozen encoder (UniDEC)",
        epochs=FIRST_EPOCHS,
    )


def quick_longer(situation: Situation) -> Candidate | None:
    """Return the best quick candidate for longer, if it beats the whole encoder so far.

    The whole encoder still gets the rest of the time: its short trial says little about it.
    """
    best = situation.best_quick
    whole = situation.trials_of_whole
    if best is None or not whole or not all(gain(best, trial).counts for trial in whole):
        return None
    return best_for_longer(situation, name=QUICK_LONGER)


def best_for_longer(situation: Situation, *, name: str = LONGER) -> Candidate | None:
    """Return the best quick candidate for longer; None if no quick candidate gained anything."""
    best = situation.best_quick
    if best is None:
        return None
    summary = f"{best.name} for longer"
    if best.name == QUICK_UNIDEC:
        return _unidec(situation, name=name, summary=summary, epochs=MOST_EPOCHS)
    return _ngrams(situation, best.name, name=name, summary=summary, epochs=MOST_EPOCHS)


def _ngrams(
    situation: Situation,
    recipe: str,
    *,
    summary: str,
    name: str | None = None,
    epochs: float = FIRST_EPOCHS,
) -> Candidate:
    return Candidate(
        name=name or recipe,
        recipe=recipe,
        summary=summary,
        settings=(
            *situation.shared(situation.instances()),
            f"optimizer.epochs={epochs:g}",
        ),
        encodings=FROZEN_ENCODINGS,
    )


def _unidec(situation: Situation, *, name: str, summary: str, epochs: float) -> Candidate:
    # The recipe uses mined labels, so they are switched off here if they do not help.
    mined = () if situation.mined_labels_help else ("batch.hard_negatives=0",)
    return Candidate(
        name=name,
        recipe=QUICK_UNIDEC,
        summary=summary,
        settings=(
            *situation.shared(situation.instances()),
            *heads(situation),
            f"optimizer.epochs={epochs:g}",
            *mined,
        ),
        encodings=2 * FROZEN_ENCODINGS,
        choices=UNIDEC_CHOICES,
    )


SHARES = {  # of the time that is left
    QUICK: 0.08,
    QUICK_ANCE: 0.1,
    QUICK_UNIDEC: 0.2,  # choosing takes it longer than the others
    WHOLE: 0.15,
    SUPCON: 0.2,
    QUICK_LONGER: 0.4,
    LONGER: 1.0,
}
INDISPENSABLE = WHOLE  # gets all the remaining time if its share is too short
RATE = 6e-4  # the encoder's learning rate with the largest batch
MIXINGS = (0.5, 1.0)
WHOLE_ENCODINGS = len(MIXINGS)  # how often the check at the end encodes all texts, at most
POSITIVES = 3  # labels per instance in a SupconDE batch (`training/recipes/supcon.toml`)


def whole(situation: Situation) -> Candidate:
    """Return a trial of the whole encoder, mixed with the pretrained weights."""
    by = " by SupconDE's loss" if situation.loss == SUPCON else ""
    candidate = _whole(
        situation,
        name=WHOLE,
        summary=f"the whole encoder{by}",
        recipe=situation.loss,
    )
    return replace(candidate, replaceable=situation.ngrams_help)


def supcon(situation: Situation) -> Candidate | None:
    """Return a trial of SupconDE's loss, if rows have several labels that its batches can hold.

    None if this loss was tried first, or if UniDEC (the same loss with classifiers) was better.
    """
    several = situation.facts.pairs >= 2 * situation.facts.labelled
    if (
        situation.loss == SUPCON
        or not several
        or not situation.gained(WHOLE)
        or situation.classifiers_help
    ):
        return None
    return _whole(
        situation,
        name=SUPCON,
        summary="the whole encoder by SupconDE's loss",
        recipe=SUPCON,
    )


def longer(situation: Situation) -> Candidate | None:
    """Return training with the best loss from scratch, for all the time that is left.

    The best loss is UniDEC's if its classifiers helped alongside the frozen encoder. It never
    continues from an earlier checkpoint: a learning rate that rises again undoes more within
    minutes than it gains. The rate is halved if half of the trained weights was best, and a fifth
    if no loss gained. If the whole encoder was not tried, the best quick candidate gets the time.
    """
    tried = situation.trials_of_whole
    if not tried:
        return best_for_longer(situation)
    best = max(tried, key=lambda trial: trial.score)
    factor = 1.0 if best.mixing == 1.0 else 0.5
    if not situation.gained(best.name):
        factor = 0.2
    recipe = SUPCON if best.name == SUPCON else situation.loss
    if situation.classifiers_help:
        recipe = UNIDEC
    return _whole(
        situation,
        name=LONGER,
        factor=factor,
        summary=f"{recipe} for longer, at {factor:g} times the learning rate",
        recipe=recipe,
    )


CANDIDATES: dict[str, Proposal] = {
    QUICK: quick,
    QUICK_ANCE: quick_ance,
    QUICK_UNIDEC: quick_unidec,
    WHOLE: whole,
    SUPCON: supcon,
    QUICK_LONGER: quick_longer,
    LONGER: longer,
}


def _whole(
    situation: Situation,
    *,
    name: str,
    summary: str,
    recipe: str,
    factor: float = 1.0,
) -> Candidate:
    """Return training of the whole encoder at `factor` times the usual learning rate."""
    clustered = recipe in (SUPCON, UNIDEC)
    positives = POSITIVES if clustered else 1
    before = situation.facts.texts if clustered else 0  # encoded for clusters, in its time
    instances = situation.instances(texts=1 + positives, before=before)
    memory = step_memory(
        situation.facts,
        situation.transformer,
        instances=instances,
        positives=positives,
        free=situation.free,
    )
    rate = factor * RATE * math.sqrt(instances / LARGEST_BATCH)  # grows with the batch's root
    # N-grams that gained nothing alongside the frozen encoder are left out.
    ngrams = () if situation.ngrams_help else ("ngrams.buckets=0",)
    return Candidate(
        name=name,
        recipe=recipe,
        summary=summary,
        settings=(
            *situation.shared(instances),
            *ngrams,
            *(("refresh.every_epochs=10",) if clustered else ()),
            *(heads(situation) if recipe == UNIDEC else ()),
            f"validation.mixing=[{', '.join(f'{mixing:g}' for mixing in MIXINGS)}]",
            f"optimizer.learning_rate={rate:.3g}",
            f"optimizer.epochs={MOST_EPOCHS}",
            f"optimizer.bucket_tokens={memory.bucket_tokens}",
            f"optimizer.gradient_cache={str(memory.gradient_cache).lower()}",
        ),
        encodings=_encodings(situation.facts, recipe),
        choices=UNIDEC_CHOICES if recipe == UNIDEC else 1,
    )


def _encodings(facts: DataFacts, recipe: str) -> float:
    """Return how often the final check encodes all texts with the whole encoder; may be a fraction.

    UniDEC's checkpoint encodes them once more.
    """
    if recipe == UNIDEC:
        return WHOLE_ENCODINGS + 1.0
    if facts.texts < 2 * SAMPLED:
        return WHOLE_ENCODINGS
    return 1.0 + len(MIXINGS) * (SAMPLED + facts.held_out) / facts.texts
