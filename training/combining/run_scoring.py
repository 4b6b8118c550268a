"""A finished run's vectors of its data, and what its held-out rows retrieve by them."""

from __future__ import annotations

import numpy as np

from training.combining.runs import FinishedRun
from training.experiments.sweeps import Scoring, open_scoring
from training.models.precision import Precision
from training.progress import Report
from training.selection.memory_choices import DEPTHS
from training.selection.validation import HeldOutRetrieval, retrieve_held_out


def scoring_of(run: FinishedRun, *, precision: Precision, report: Report) -> Scoring:
    """Encode a run's data by its best checkpoint."""
    return open_scoring(
        str(run.best), run.dataset, folder=run.best, precision=precision, report=report
    )


def held_out_of(run: FinishedRun, scoring: Scoring) -> HeldOutRetrieval:
    """The held-out rows in a memory of the rows that trained, as deep as any choice needs."""
    instances, labels = np.split(scoring.memory.keys.astype(np.float32), [len(run.dataset.train)])
    depth = max(*DEPTHS, scoring.choices.depth)
    return retrieve_held_out(scoring.dataset, run.slices, instances, labels, depth=depth)
