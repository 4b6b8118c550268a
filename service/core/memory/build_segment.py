"""`python -m service.core.memory.build_segment JOB`: the child process that builds one segment.

A graph built inside the service, even in a thread of low priority, takes search from 0.3 ms to 4 ms
at the 99th percentile; a niced process leaves it alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import orjson

from service.core.index.libraries import IndexParameters, load_library
from service.core.memory.segment_store import INDEX
from service.core.processes.low_priority import step_aside


def main(job: Path) -> None:
    """Build `segment.index` from `vectors.npy` and `parameters.json` in the folder `job`."""
    parent = os.getppid()
    step_aside()

    def orphaned(_rows: int) -> None:
        if os.getppid() != parent:
            sys.exit("the service that asked for this segment is gone")

    parameters = IndexParameters(**orjson.loads((job / "parameters.json").read_bytes()))
    vectors = np.load(job / "vectors.npy")
    load_library(parameters.library).build(vectors, parameters, job / INDEX, orphaned)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
