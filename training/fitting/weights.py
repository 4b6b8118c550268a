"""How the votes of the memory should weigh: as the data say, by the logarithm, or all alike.

This is measured with the untrained encoder's memory, which needs no training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from training.checkpoints.choices import UNCHOSEN
from training.datasets.pair_weights import Relevance, relevance, vote_weights
from training.fitting.trial import METRICS, Measured, Trial, best_of, gain, joined, measure
from training.selection.memory_choices import choose_on
from training.selection.validation import HeldOutRetrieval

SCALES: tuple[Relevance, ...] = ("given", "log", "binary")  # the first is what the data have


def weight_trials(
    held_out: Sequence[HeldOutRetrieval], measured: Sequence[Measured]
) -> list[Trial]:
    """A trial for each scale, on the held-out rows of each split; none where all weights are equal.

    `measured` are the same rows with the weights as given, whose choices hold for all scales.
    """
    if all(vote_weights(split.memory.labels_of) is None for split in held_out):
        return []
    return [
        joined(
            [
                measure(_scaled(split, scale), given.choices)
                for split, given in zip(held_out, measured, strict=True)
            ],
            name=scale,
            summary="",
            folder=Path(),
            seconds=0.0,
        )
        for scale in SCALES
    ]


def weight_lines(trials: Sequence[Trial]) -> Iterator[str]:
    """What the scales reached, and what is kept where another one than the data's is better."""
    if not trials:
        return
    means = ", ".join(f"{trial.name} {trial.score:.1f}" for trial in trials)
    yield f"weights of the memory's votes, mean on the held-out rows: {means}"
    best = best_of(trials)
    if best is not trials[0]:
        gained = gain(best, trials[0])
        yield (
            f"{best.name} gains {gained.points:.1f} ± {gained.error:.1f} points over the weights"
            f" as given: the memory of what is kept votes with relevance {best.name}"
            " (`export bundle --relevance given` overrules it)"
        )


def best_relevance(trials: Sequence[Trial]) -> Relevance | None:
    """The scale to keep; None where all weights are equal, so that nothing was compared."""
    if not trials:
        return None
    best = best_of(trials)
    return next(scale for scale in SCALES if scale == best.name)


def chosen_with(scale: Relevance, held_out: HeldOutRetrieval, given: Measured) -> Measured:
    """The held-out rows of a split with the votes on a scale, and tau, lambda and b chosen for it.

    `given` are the same rows with the weights as given.
    """
    if scale == "given":
        return replace(given, choices=replace(given.choices, relevance=scale))
    scaled = _scaled(held_out, scale)
    start = replace(UNCHOSEN, relevance=scale)
    return measure(scaled, choose_on(scaled, start, metrics=METRICS))


def _scaled(held_out: HeldOutRetrieval, scale: Relevance) -> HeldOutRetrieval:
    labels_of = relevance(held_out.memory.labels_of, scale=scale)
    return replace(held_out, memory=replace(held_out.memory, labels_of=labels_of))
