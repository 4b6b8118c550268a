"""Processor time of a server and its child processes, which moves least on a busy machine."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from time import clock_gettime
from typing import TypeVar

Result = TypeVar("Result")


def processor_seconds(pid: int) -> float:
    """Seconds of processor time that a process tree has used so far (Linux only).

    Counts all threads of the process and of its running descendants, those that have ended too, to
    the nanosecond: the counters of getrusage move in steps of ten milliseconds.
    """
    return sum(_seconds_of(process) for process in process_tree(pid))


def with_processor_time(pid: int, work: Callable[[], Result]) -> tuple[Result, float]:
    """Return what `work` returns, and the processor seconds of a process tree meanwhile."""
    before = processor_seconds(pid)
    result = work()
    return result, processor_seconds(pid) - before


def process_tree(pid: int) -> Iterator[int]:
    """Yield the process and all its descendants."""
    children = defaultdict(list)
    for process in filter(str.isdecimal, os.listdir("/proc")):
        stat = _read(Path("/proc", process, "stat"))
        if stat:  # "pid (name) state parent ...", and a name may hold anything
            children[int(stat.rpartition(")")[2].split()[1])].append(int(process))
    waiting = [pid]
    while waiting:
        process_id = waiting.pop()
        yield process_id
        waiting += children[process_id]


def _seconds_of(pid: int) -> float:
    try:
        return clock_gettime(_process_clock(pid))
    except OSError:  # the process has just ended
        return 0.0


def _process_clock(pid: int) -> int:
    """The kernel's clock of a process's processor time, as clock_getcpuclockid(3) numbers it."""
    return (~pid << 3) | 2


def _read(path: Path) -> str:
    """The text of a file of /proc; empty where its process or thread has just ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
