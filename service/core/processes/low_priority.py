"""Child processes for long work next to the service: one thread each, lowest priority."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence

from service.core.errors import SealError


def lower_priority() -> None:
    """Let this process run only when no other process needs the processor.

    Niceness alone is not enough: on Linux, a process of lowest niceness finishes its time slice
    (some milliseconds) when another wakes up. The idle scheduling class yields at once.
    """
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class LowPriorityChild:
    """Runs one child process at a time. `stop` may be called from any thread."""

    def __init__(self) -> None:
        """Start no process yet."""
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, command: Sequence[str], *, secrets: Mapping[str, str] | None = None) -> str:
        """Run a command to its end and return what it printed on stdout.

        `secrets` are passed as environment variables, because other users can read command lines.
        The command must call `lower_priority` itself: a hook between fork and exec would run
        Python code in a copy of a process with threads, which may deadlock.

        Raises `SealError` with the last line of stderr if the command fails, is killed, or if
        `stop` was called before.
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
            stdout, stderr = child.communicate()
        finally:
            with self._lock:
                self._running = None
        if child.returncode != 0:
            last = stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise SealError(f"the child process ended with {child.returncode}: {' '.join(last)}")
        return stdout.decode()

    def stop(self) -> None:
        """Kill the running child, and refuse to start another."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                self._running.kill()
