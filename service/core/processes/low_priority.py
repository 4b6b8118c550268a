"""Child processes for background work: one thread each, at lower priority than queries."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

from service.core.errors import SealError, SealLate
from service.core.processes.resources import c_function

LOWEST_NICENESS = 19
# A process gets 1.25 times the CPU time of one whose niceness is higher by 1 (`sched(7)`).
_WEIGHT_STEP = 1.25
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def lower_priority() -> None:
    """Let this process run only when no other process needs the CPU.

    Niceness alone is not enough: on Linux, even the nicest process finishes its time slice (some
    milliseconds) when another wakes up. The idle scheduling class yields at once. But on cores that
    others keep busy it gets almost no time. So work that somebody waits for uses `niceness_of`
    instead.
    """
    os.nice(LOWEST_NICENESS)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def wake_when_orphaned() -> bool:
    """Have this process continued (SIGCONT) when its parent ends; return whether it will be.

    A child notices when its service is killed, but not while the child is stopped (SIGSTOP). Then
    it would never end. The child must call this. Only Linux supports it.
    """
    prctl = c_function("prctl")
    asked = _PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGCONT)
    return prctl is not None and bool(prctl(*asked) == 0)


def niceness_of(share: float) -> int:
    """Return the niceness of a process that gets `share` of a core next to another busy process.

    With weights w(n) = 1.25^-n, the share is w(n) / (w(n) + w(0)), at most 0.5.
    """
    exact = math.log((1 - share) / share) / math.log(_WEIGHT_STEP)
    return min(max(round(exact), 0), LOWEST_NICENESS)


class LowPriorityChild:
    """Runs one child process at a time. `stop` may be called from any thread."""

    def __init__(self) -> None:
        """Start without a process."""
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self.stopped = False  # whether `stop` was called

    def run(
        self,
        command: Sequence[str],
        *,
        secrets: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> str:
        """Run a command to its end and return what it printed on stdout.

        `secrets` are passed as environment variables, because other users can read command lines.
        The command must call `lower_priority` itself. A hook between fork and exec would run Python
        code in a copy of a process with threads, and this may deadlock.

        Raises `SealError` with the last line of stderr if the command fails or is killed, or if
        `stop` was called before. If it is not done after `seconds`, kills it and raises `SealLate`.
        """
        with self._lock:
            if self.stopped:
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

    def kill(self) -> None:
        """Kill the running child, if there is one."""
        with self._lock:
            if self._running is not None:
                self._running.kill()

    def stop(self) -> None:
        """Kill the running child, and start no other child."""
        with self._lock:
            self.stopped = True
        self.kill()
