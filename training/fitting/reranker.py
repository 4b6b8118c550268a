"""The last step of `fit`: a reranker learns to order the best labels of the kept run.

The checkpoint of an earlier run may have a reranker already. It is learned again or kept with that
checkpoint; otherwise the last line says that it is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from service.core.errors import InvalidInput
from training.checkpoints import reranker_folder, trained_texts
from training.checkpoints.choices import (
    CHOICES,
    NOVEL,
    Choices,
    as_document,
    read_choices,
    write_choices,
)
from training.checkpoints.label_keys import LABEL_KEYS
from training.checkpoints.reranker_folder import copy, is_reranker, read, weights_digest
from training.checkpoints.run_json import BEST, read_run, write_run
from training.datasets.dataset import Dataset
from training.fitting.facts import DataFacts
from training.fitting.time_left import Cost
from training.fitting.trial import Trial
from training.models.encoder_location import locate
from training.progress import Report
from training.reranking.finished_run import open_run
from training.reranking.learning import (
    FOLDS,
    LearnedReranker,
    RerankSettings,
    learn_reranker,
)
from training.reranking.written import remove, write
from training.systems.oak.memory import FUSION

LARGEST_SHARE = 0.2  # of the total time
LARGEST_SHARE_OF_PARENT = 0.5  # of the total time, if the parent has a reranker
# Seconds of CPU time per held-out row: its candidates' features, and learning from them.
_A_ROW = 0.03
_AT_LEAST = 3.0


def seconds_needed(facts: DataFacts, cost: Cost, *, of: float, share: float) -> float:
    """Return the estimated seconds for a reranker; 0 if they exceed `share` of all `of` seconds.

    The kept encoder encodes all texts once more.
    """
    needed = cost.encode + cost.slowness * (_A_ROW * facts.held_out + _AT_LEAST)
    return needed if needed <= share * of and facts.held_out >= FOLDS else 0.0


def learn(kept: Trial, dataset: Dataset, *, seed: int, report: Report) -> LearnedReranker:
    """Learn on the held-out rows of the first split; write the trees next to the checkpoint.

    `dataset` has its original pair weights.
    """
    run = open_run(kept.folder, dataset)
    settings = RerankSettings(seed=seed)
    learned = learn_reranker(run, (), settings, precision="auto", report=report)
    try:
        write(learned, kept.folder / BEST)
    except BaseException:  # out of time, or interrupted: leave no partial files
        remove(kept.folder / BEST)
        raise
    return learned


def inherit(parent: Path, run: Path) -> Choices | None:
    """Copy the parent's trees into a run that kept the parent's weights, with the parent's choices.

    Trees fit only the temperature, lambda and b with which they were learned. Returns these
    choices, or None (nothing is copied) if the parent has no trees or the run has other weights.
    """
    best, choices = run / BEST, read_choices(parent)
    if choices is None or not is_reranker(parent):
        return None
    try:
        read(parent, weights=weights_digest(best))
    except InvalidInput:  # the weights differ
        return None
    copy(parent, best)
    write_choices(best, choices)
    write_run(run, {**read_run(run), "choices": as_document(choices)})
    return choices


def lines(learned: LearnedReranker) -> Iterator[str]:
    """Say how much the trees gain, and whether they are kept."""
    choice, gain = learned.choice, learned.choice.gain
    gained = f"{gain.points:+.1f} ± {gain.error:.1f} points on the held-out rows"
    if not choice.trees:
        yield f"a reranker by trees: {gained}, so the memory's own ranking is kept"
        return
    yield (
        f"a reranker by {choice.trees} trees: {gained}; it is kept, and bundles of this run"
        " have it (`export bundle --reranker none` leaves it out)"
    )


def as_facts(learned: LearnedReranker) -> Mapping[str, Any]:
    """The chosen settings and figures, for run.json."""
    choice = learned.choice
    return {
        "trees": choice.trees,
        "candidates": learned.settings.candidates,
        "gain": choice.gain.points,
        "standard_error": choice.gain.error,
    }


RERANKER = "reranker"
PARTS = {
    LABEL_KEYS: "learned label keys",
    NOVEL: "settings for novel labels",
    FUSION: "item memory",
    reranker_folder.FILE: RERANKER,
}


def parent_of(start: str) -> Path | None:
    """The checkpoint that an encoder's name refers to, if `train` or `fit` wrote it."""
    checkpoint = Path(locate(start))
    written = (CHOICES, trained_texts.FILE)
    return checkpoint if any((checkpoint / file).is_file() for file in written) else None


def missing_parts(checkpoint: Path, *, of: Path) -> list[str]:
    """The parts that the checkpoint `of` has and `checkpoint` lacks."""
    return [
        part
        for file, part in PARTS.items()
        if (of / file).is_file() and not (checkpoint / file).is_file()
    ]
