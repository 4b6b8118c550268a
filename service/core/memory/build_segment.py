"""`python -m service.core.memory.build_segment JOB [NICENESS]`: build a segment in a child process.

A graph built inside the service, even in a low-priority thread, raises the 99th percentile of
search from 0.3 ms to 4 ms. A child process of low priority (nice) does not slow search down.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import orjson

from service.core.index.choose_ef import sampled, smallest_ef
from service.core.index.frozen_segment import build_segment
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Progress
from service.core.memory.segment_store import INDEX, MEASURED, VECTORS
from service.core.processes.low_priority import lower_priority, wake_when_orphaned
from service.core.types import Halves

MEASURED_DEPTH = 200  # the number of nearest rows in searches that measure recall


def main(job: Path, niceness: int | None = None) -> None:
    """Build `segment.index` from `vectors.npy` and `parameters.json` in the folder `job`.

    Also writes `measured.json`: the number of distinct vectors, the queue length that reaches the
    recall goal, and the recall.

    Runs at the lowest priority, or at `niceness` if it is given. Exits with a message as soon as
    the parent process has ended.
    """
    parent = os.getppid()
    wake_when_orphaned()
    if niceness is None:
        lower_priority()
    else:
        os.nice(niceness)

    def exit_if_orphaned(_rows: int) -> None:
        if os.getppid() != parent:
            sys.exit("the service that started this build has ended")

    parameters = IndexParameters(**orjson.loads((job / "parameters.json").read_bytes()))
    vectors = np.load(job / VECTORS, mmap_mode="r")
    build_measured(vectors, parameters, job, exit_if_orphaned)


def build_measured(
    vectors: Halves, parameters: IndexParameters, job: Path, progress: Progress
) -> None:
    """Build the segment over vectors [n, d] in the folder `job`, and measure it."""
    segment = build_segment(vectors, parameters, job / INDEX, progress)
    chosen = smallest_ef(
        segment,
        vectors,
        sampled(vectors),
        shortest=parameters.ef,
        recall=parameters.recall_goal,
        depth=MEASURED_DEPTH,
    )
    measured = {"nodes": segment.nodes, "ef": chosen.ef, "recall": chosen.recall}
    (job / MEASURED).write_bytes(orjson.dumps(measured))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
