"""A service whose clock jumps: `python jumping_clock_service.py FILE ARGUMENT ...`.

FILE holds the seconds that are added to the system's time. It may change at any time. Further
arguments are those of `python -m service`. Its child processes have the system's time.
"""

import runpy
import sys
import time
from pathlib import Path


def jump(file: Path) -> None:
    """Add the seconds in a file to what this process reads as the time."""
    real_ns = time.time_ns

    def time_ns() -> int:
        return real_ns() + 1_000_000_000 * int(file.read_text() or 0)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if __name__ == "__main__":
    jump(Path(sys.argv[1]))
    del sys.argv[1], sys.path[0]
    runpy.run_module("service", run_name="__main__", alter_sys=True)
