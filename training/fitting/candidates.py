"""What `fit` tries, in this order, and how each candidate's numbers follow from data and time.

Learning rates come from what was measured on two data sets (`training/recipes`); they are scaled to
the batch, and the length of training to the time that is left.
"""

from __future__ import annotations

import math
from dataclasses import replace

from training.fitting.candidate import MOST_EPOCHS, UNIDEC_CHOICES, Candidate, Proposal, heads
from training.fitting.facts import DataFacts
from training.fitting.quick_candidates import (
    best_for_longer,
    quick,
    quick_ance,
    quick_longer,
    quick_unidec,
)
from training.fitting.situation import (
    LARGEST_BATCH,
    LONGER,
    QUICK,
    QUICK_ANCE,
    QUICK_LONGER,
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
    QUICK_UNIDEC: 0.2,  # it chooses for longer than the others
    WHOLE: 0.15,
    SUPCON: 0.2,
    QUICK_LONGER: 0.4,
    LONGER: 1.0,
}
INDISPENSABLE = WHOLE  # gets all the time that is left where its share is too short
RATE = 6e-4  # of the encoder, with the largest batch
MIXINGS = (0.5, 1.0)
WHOLE_ENCODINGS = len(MIXINGS)  # of all texts at most, by the check at the end
POSITIVES = 3  # labels of an instance in a batch of SupconDE's (`training/recipes/supcon.toml`)


def whole(situation: Situation) -> Candidate:
    """The whole encoder, mixed with the pretrained weights as is best."""
    by = " by SupconDE's loss" if situation.loss == SUPCON else ""
    candidate = _whole(
        situation,
        name=WHOLE,
        summary=f"the whole encoder{by}",
        recipe=situation.loss,
    )
    return replace(candidate, replaceable=situation.ngrams_help)


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
    gained, it is a fifth. Where there was no time for the whole encoder, the best candidate beside
    the frozen one gets it, if one gained something.
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
    """How often the whole encoder encodes all texts: at its check, of which a part may be a sample.

    UniDEC needs the vectors of its checkpoint once more.
    """
    if recipe == UNIDEC:
        return WHOLE_ENCODINGS + 1.0
    if facts.texts < 2 * SAMPLED:
        return WHOLE_ENCODINGS
    return 1.0 + len(MIXINGS) * (SAMPLED + facts.held_out) / facts.texts
