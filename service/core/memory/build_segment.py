"""`python -m service.core.memory.build_segment JOB [NICENESS]`: build a segment in a child process.

Building a graph inside the service, even in a thread of low priority, raises the 99th percentile of
search from 0.3 ms to 4 ms. A child process of low priority (nice) does not slow search down.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import orjson

from service.core.index.libraries import IndexParameters, load_library
from service.core.memory.segment_store import INDEX
from service.core.processes.low_priority import lower_priority


def main(job: Path, niceness: int | None = None) -> None:
    """Build `segment.index` from `vectors.npy` and `parameters.json` in the folder `job`.

    Runs at the lowest priority, or at `niceness` if it is given. Exits with a message as soon as
    the parent process has ended.
    """
    parent = os.getppid()
    if niceness is None:
        lower_priority()
    else:
        os.nice(niceness)

    def exit_if_orphaned(_rows: int) -> None:
        if os.getppid() != parent:
            sys.exit("the service that started this build has ended")

    parameters = IndexParameters(**orjson.loads((job / "parameters.json").read_bytes()))
    vectors = np.load(job / "vectors.npy")
    load_library(parameters.library).build(vectors, parameters, job / INDEX, exit_if_orphaned)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
