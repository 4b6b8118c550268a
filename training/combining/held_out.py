"""What the rows that a run holds out retrieve from a memory of the rows that it trained on."""

from __future__ import annotations

import numpy as np

from training.combining.runs import FinishedRun
from training.experiments.sweeps import Scoring
from training.selection.memory_choices import DEPTHS
from training.selection.validation import HeldOutRetrieval, retrieve_held_out


def held_out_of(run: FinishedRun, scoring: Scoring) -> HeldOutRetrieval:
    """The held-out rows of a run whose data are encoded already, as deep as any choice needs."""
    instances, labels = np.split(scoring.memory.keys.astype(np.float32), [len(run.dataset.train)])
    depth = max(*DEPTHS, scoring.choices.depth)
    return retrieve_held_out(scoring.dataset, run.slices, instances, labels, depth=depth)
