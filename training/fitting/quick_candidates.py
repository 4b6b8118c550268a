"""What `fit` trains beside the frozen encoder: n-grams, against mined labels, and classifiers.

The encoder's vectors are kept from the first trial on, so these candidates take little beside their
steps.
"""

from __future__ import annotations

from training.fitting.candidate import MOST_EPOCHS, UNIDEC_CHOICES, Candidate, heads
from training.fitting.situation import (
    LONGER,
    QUICK,
    QUICK_ANCE,
    QUICK_LONGER,
    QUICK_UNIDEC,
    Situation,
)
from training.fitting.trial import gain

# N-grams and heads take a fiftieth of what encoding takes, and a text in a hundred is encoded anew
# because it is cut.
FROZEN_ENCODINGS = 0.05
CLICKS_A_LABEL = 2  # on average, that classifiers need
FEW_LABELS = 2  # times a batch's instances: of fewer, a batch has most anyway
FIRST_EPOCHS = MOST_EPOCHS / 2  # of the short trials


def quick(situation: Situation) -> Candidate:
    """Character n-grams beside the frozen encoder."""
    return _ngrams(situation, QUICK, summary="n-grams beside the frozen encoder")


def quick_ance(situation: Situation) -> Candidate | None:
    """The same against mined labels, where a batch has not nearly all labels anyway."""
    if situation.facts.labels < FEW_LABELS * situation.instances():
        return None
    return _ngrams(situation, QUICK_ANCE, summary="the same against mined labels")


def quick_unidec(situation: Situation) -> Candidate | None:
    """The same with classifiers, where labels have clicks enough to learn them from."""
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
    """The best of these once more, for longer, where it is better than the whole encoder so far.

    A short trial says little of the whole encoder, which gets the rest of the time nevertheless.
    """
    best = situation.best_quick
    whole = situation.trials_of_whole
    if best is None or not whole or not all(gain(best, trial).counts for trial in whole):
        return None
    return best_for_longer(situation, name=QUICK_LONGER)


def best_for_longer(situation: Situation, *, name: str = LONGER) -> Candidate | None:
    """The best of these once more; None where none gained anything."""
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
    # The recipe has mined labels.
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
