"""Child processes for work next to the service: one thread each, of lower priority than queries."""

from __future__ import annotations

import math
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence

from service.core.errors import SealError, SealLate

LOWEST_NICENESS = 19
# Linux gives a process 1.25 times the processor time of one that is nicer by 1 (`sched(7)`).
_WEIGHT_STEP = 1.25


def lower_priority() -> None:
    """Let this process run only when no other process needs the processor.

    Niceness alone is not enough: on Linux, a process of lowest niceness finishes its time slice
    (some milliseconds) when another wakes up. The idle scheduling class yields at once. It has next
    to no claim on a core that others keep busy, so work that somebody waits for takes `niceness_of`
    instead.
    """
    os.nice(LOWEST_NICENESS)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def niceness_of(share: float) -> int:
    """Return the niceness of a process that gets `share` of a core beside another busy process.

    `share` is above 0 and at most 0.5. With weights w(n) = 1.25^-n the share is
    w(n) / (w(n) + w(0)); n is rounded to a whole number.
    """
    exact = math.log((1 - share) / share) / math.log(_WEIGHT_STEP)
    return min(max(round(exact), 0), LOWEST_NICENESS)


class LowPriorityChild:
    """Runs one child process at a time. `stop` may be called from any thread."""

    def __init__(self) -> None:
        """Start no process yet."""
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(
        self,
        command: Sequence[str],
        *,
        secrets: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> str:
        """Run a command to its end and return what it printed on stdout.

        `secrets` are passed as environment variables, because other users can read command lines.
        The command must call `lower_priority` itself: a hook between fork and exec would run
        Python code in a copy of a process with threads, which may deadlock.

        Raises `SealError` with the last line of stderr if the command fails, is killed, or if
        `stop` was called before; `SealLate` if it is not done after `seconds`, and then kills it.
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
            stdout, stderr = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            child.kill()
            child.communicate()
            raise SealLate(f"the child process was not done after {seconds:.0f} s") from error
        finally:
            with self._lock:
                self._running = None
        if child.returncode != 0:
            last = stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise SealError(f"the child process ended with {child.returncode}: {' '.join(last)}")
        return stdout.decode()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def kill(self) -> None:
        """Kill the running child, if there is one."""
        with self._lock:
            if self._running is not None:
                self._running.kill()

    def stop(self) -> None:
        """Kill the running child, and refuse to start another."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                self._running.kill()
