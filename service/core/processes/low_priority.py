"""Child processes for long work beside the service: one thread, lowest priority."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence

from service.core.errors import SealError


def step_aside() -> None:
    """Give this process what processor time nobody else wants.

    Linux lets a process of lowest niceness finish its time slice when another wakes up, some
    milliseconds; one that is scheduled as idle makes way at once.
    """
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class NicedChild:
    """Runs one child at a time; `stop` may be called from any thread."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, command: Sequence[str], *, secrets: Mapping[str, str] | None = None) -> str:
        """Run a command to its end; returns what it printed.

        `secrets` are environment variables, for what others must not read on a command line.

        The command makes itself nice: what runs between fork and exec must not be Python. Raises
        `SealError` with the last line of its stderr when it fails or is killed.
        """
        with self._lock:
            if self._stopped:
                raise SealError("the service is stopping")
            child = subprocess.Popen(
                command,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(secrets or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self._running = child
        try:
            printed, complaint = child.communicate()
        finally:
            with self._lock:
                self._running = None
        if child.returncode != 0:
            last = complaint.decode(errors="replace").strip().splitlines()[-1:]
            raise SealError(f"the child process ended with {child.returncode}: {' '.join(last)}")
        return printed.decode()

    def stop(self) -> None:
        """Kill the child and run no other."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                self._running.kill()
