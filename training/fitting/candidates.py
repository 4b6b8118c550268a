"""What `fit` tries, in this order, and how each candidate's numbers follow from data and time.

Learning rates come from what was measured on two data sets (`training/recipes`); they are scaled to
the batch, and the length of training to the time that is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from training.fitting.facts import DataFacts
from training.fitting.situation import (
    LARGEST_BATCH,
    LONGER,
    QUICK,
    QUICK_ANCE,
    QUICK_UNIDEC,
    SUPCON,
    UNIDEC,
    WHOLE,
    Situation,
)
from training.selection.validation import SAMPLED

SHARES = {  # of what is left
    QUICK: 0.08,
    QUICK_ANCE: 0.1,
    QUICK_UNIDEC: 0.1,
    WHOLE: 0.15,
    SUPCON: 0.2,
    LONGER: 1.0,
}
INDISPENSABLE = WHOLE  # gets all the time that is left where its share is too short
RATE = 6e-4  # of the encoder, with the largest batch
MIXINGS = (0.5, 1.0)
WHOLE_ENCODINGS = len(MIXINGS)  # of all texts at most, by the check at the end
# Vectors of the frozen encoder are kept from the first trial on. N-grams and heads take a fiftieth
# of what encoding takes, and a text in a hundred is encoded anew because it is cut.
FROZEN_ENCODINGS = 0.05
UNIDEC_CHOICES = 4  # longer vectors, eleven shares of the heads, keys with classifiers and without
CLICKS_A_LABEL = 2  # on average, that classifiers need
MINED = 6  # labels of a row in a batch (`training/recipes/ance-quick.toml`)
POSITIVES = 3  # labels of an instance in a batch of SupconDE's (`training/recipes/supcon.toml`)
FEW_LABELS = 2  # times a batch's instances: of fewer, a batch has most anyway
MOST_EPOCHS = 40


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A recipe with the settings that fit the data, and a sentence for the reader."""

    name: str
    recipe: str
    summary: str
    settings: tuple[str, ...]  # table.key=value
    encodings: float = 1.0  # how often it encodes all texts, beside its steps
    choices: int = 1  # how often it chooses on the held-out rows, in units of one with one vector


Proposal = Callable[[Situation], Candidate | None]


def quick(situation: Situation) -> Candidate:
    """Character n-grams beside the frozen encoder."""
    return _quick(situation, name=QUICK, recipe=QUICK, summary="n-grams beside the frozen encoder")


def quick_ance(situation: Situation) -> Candidate | None:
    """The same against mined labels, where a batch has not nearly all labels anyway."""
    if situation.facts.labels < FEW_LABELS * situation.instances():
        return None
    return _quick(
        situation, name=QUICK_ANCE, recipe=QUICK_ANCE, summary="the same against mined labels"
    )


def _quick(situation: Situation, *, name: str, recipe: str, summary: str) -> Candidate:
    """N-grams beside the frozen encoder by a recipe."""
    return Candidate(
        name=name,
        recipe=recipe,
        summary=summary,
        settings=(
            *situation.shared(situation.instances()),
            f"optimizer.epochs={MOST_EPOCHS / 2:g}",
        ),
        encodings=FROZEN_ENCODINGS,
    )


def quick_unidec(situation: Situation) -> Candidate | None:
    """The same with classifiers, where labels have clicks enough to learn them from."""
    facts = situation.facts
    if facts.pairs < CLICKS_A_LABEL * facts.labels:
        return None
    return Candidate(
        name=QUICK_UNIDEC,
        recipe=QUICK_UNIDEC,
        summary="n-grams and classifiers beside the frozen encoder (UniDEC)",
        settings=(
            *situation.shared(situation.instances()),
            *_heads(situation),
            f"optimizer.epochs={MOST_EPOCHS / 2:g}",
            "refresh.every_epochs=3",
            f"batch.hard_negatives={MINED if situation.mined_labels_help else 0}",
        ),
        encodings=2 * FROZEN_ENCODINGS,
        choices=UNIDEC_CHOICES,
    )


def whole(situation: Situation) -> Candidate:
    """The whole encoder, mixed with the pretrained weights as is best."""
    by = " by SupconDE's loss" if situation.loss == SUPCON else ""
    return _whole(
        situation,
        name=WHOLE,
        summary=f"the whole encoder{by}",
        recipe=situation.loss,
    )


def supcon(situation: Situation) -> Candidate | None:
    """SupconDE's loss, where rows have several labels that its batches can hold.

    It is not tried again where it came first, nor where UniDEC, which has the same loss and
    classifiers, was better anyway.
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
    """The best loss from the start, for all the time that is left.

    That is UniDEC where its classifiers helped beside the frozen encoder. It does not go on from an
    earlier checkpoint: a learning rate that rises anew undoes more within minutes than it gains.
    Where half of the trained weights was best, the learning rate is halved, and where no loss
    gained, it is a fifth. Where there was no time for the whole encoder, the n-grams get it, if
    they gained something.
    """
    tried = [trial for name in (WHOLE, SUPCON) if (trial := situation.trial(name)) is not None]
    if not tried:
        if not situation.ngrams_help:
            return None
        return _quick(
            situation,
            name=LONGER,
            recipe=QUICK_ANCE if situation.mined_labels_help else QUICK,
            summary="n-grams beside the frozen encoder, for longer",
        )
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
    LONGER: longer,
}


def _heads(situation: Situation) -> tuple[str, ...]:
    """UniDEC's heads, both as wide as the encoder; novel labels are represented by their texts."""
    return (
        f"heads.encoder={situation.width}",
        f"heads.classifier={situation.width}",
        "system.choose_novel=false",
    )


def _whole(
    situation: Situation,
    *,
    name: str,
    summary: str,
    recipe: str,
    factor: float = 1.0,
) -> Candidate:
    """The whole encoder by a recipe, at `factor` times the learning rate of its batch."""
    clustered = recipe in (SUPCON, UNIDEC)
    positives = POSITIVES if clustered else 1
    before = situation.facts.texts if clustered else 0  # which is within its time
    instances = situation.instances(texts=1 + positives, before=before)
    memory = situation.memory(instances=instances, positives=positives)
    rate = factor * RATE * math.sqrt(instances / LARGEST_BATCH)  # it falls with the batch's root
    # N-grams that gained nothing beside the frozen encoder are left out.
    ngrams = () if situation.ngrams_help else ("ngrams.buckets=0",)
    return Candidate(
        name=name,
        recipe=recipe,
        summary=summary,
        settings=(
            *situation.shared(instances),
            *ngrams,
            *(("refresh.every_epochs=10",) if clustered else ()),
            *(_heads(situation) if recipe == UNIDEC else ()),
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
    """How often the whole encoder encodes all texts: at its check, of which a part may be a sample.

    UniDEC needs the vectors of its checkpoint once more.
    """
    if recipe == UNIDEC:
        return WHOLE_ENCODINGS + 1.0
    if facts.texts < 2 * SAMPLED:
        return WHOLE_ENCODINGS
    return 1.0 + len(MIXINGS) * (SAMPLED + facts.held_out) / facts.texts
