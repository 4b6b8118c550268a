"""Resources of a server: CPU time, resident memory, metrics.

Of these figures, CPU time varies least on a busy machine.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import clock_gettime
from typing import Any, TypeVar

from loadtests.connection import Connection, get, require
from loadtests.report import Row
from service.child_server import Server

RESIDENT_MB = 900.0
CHILD = b"service.core.encoding.child"
SHARD = b"ray::ShardActor"
RAYS_OWN = (b"/ray/", b"ray::DashboardAgent", b"ray::RuntimeEnvAgent", b"ray::IDLE")

Result = TypeVar("Result")


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process tree has used so far (Linux only).

    Counts all threads of the process and of its running descendants, including ended threads, but
    not Ray's own processes, which always work a little. The clock has nanoseconds, while the
    counters of getrusage move in steps of ten milliseconds.
    """
    seconds = 0.0
    for process in process_tree(pid):
        with suppress(OSError):  # the process has just ended
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            if not any(part in command for part in RAYS_OWN):
                # The clock of a process's CPU time, as clock_getcpuclockid(3) numbers it.
                seconds += clock_gettime((~process << 3) | 2)
    return seconds


def with_cpu_time(pid: int, work: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of `work`, and the CPU seconds that a process tree used for it."""
    before = cpu_seconds(pid)
    result = work()
    return result, cpu_seconds(pid) - before


def process_tree(pid: int) -> Iterator[int]:
    """Yield the process and all its descendants."""
    children = defaultdict(list)
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # the process has just ended
            # The file holds "pid (name) state parent ..."; a name may contain anything.
            stat = Path("/proc", process, "stat").read_text()
            children[int(stat.rpartition(")")[2].split()[1])].append(int(process))
    waiting = [pid]
    while waiting:
        process_id = waiting.pop()
        yield process_id
        waiting += children[process_id]


def with_command(pid: int, part: bytes) -> Iterator[int]:
    """Yield each process in the tree of `pid` whose command contains `part`."""
    for process in process_tree(pid):
        with suppress(OSError):  # the process has just ended
            if part in Path(f"/proc/{process}/cmdline").read_bytes():
                yield process


def encoding_children(pid: int) -> Iterator[int]:
    """Yield the descendants of a server that encode for it."""
    return with_command(pid, CHILD)


def shard_processes(pid: int) -> Iterator[int]:
    """Yield the descendants of a process that hold shards."""
    return with_command(pid, SHARD)


@dataclass(frozen=True, kw_only=True)
class Resident:
    """Resident megabytes of a process: its private pages, and file pages that processes share."""

    private: float
    shared: float

    @property
    def total(self) -> float:
        """All resident megabytes, the RSS shown by `ps`."""
        return self.private + self.shared


def resident(pid: int) -> Resident:
    """Read the memory of a running process from /proc (Linux only)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = {
        name: int(size.split()[0])
        for name, _, size in (line.partition(":") for line in lines if line.startswith("Rss"))
    }
    anonymous, file, shared = (kilobytes[f"Rss{kind}"] for kind in ("Anon", "File", "Shmem"))
    return Resident(private=anonymous / 1000, shared=(file + shared) / 1000)


def resident_of(processes: Iterable[int]) -> Resident:
    """Return the memory of several processes; shared pages of files count once."""
    private, shared = 0.0, 0.0
    for process in processes:
        with suppress(OSError, KeyError):  # the process has just ended
            memory = resident(process)
            private, shared = private + memory.private, max(shared, memory.shared)
    return Resident(private=private, shared=shared)


def metrics_of(port: int) -> str:
    """Return the metrics of the service at a port."""
    with Connection(port) as connection:
        return connection.ask(get("/metrics"))[1].decode()


def info_of(port: int) -> dict[str, Any]:
    """Return what GET /info of the service at a port shows."""
    with Connection(port) as connection:
        info: dict[str, Any] = require(connection.ask(get("/info")))
        return info


def metric(metrics: str, name: str, label: str = "") -> float:
    """Sum the samples of a metric, or only those with a label such as `status="500"`."""
    sample = re.compile(rf"^{name}(\{{.*\}})? (\S+)$", re.MULTILINE)
    return sum(float(value) for labels, value in sample.findall(metrics) if label in labels)


def resident_row(server: Server) -> Row:
    """Return the row for the current memory of the server's largest process."""
    memory = max(map(resident, process_tree(server.pid)), key=lambda one: one.total)
    return Row.bounded(
        "resident memory after the load",
        memory.total,
        most=RESIDENT_MB,
        unit=" MB a worker",
        measured=f"{memory.total:.0f} MB, of them {memory.shared:.0f} MB mapped files",
        figures={**asdict(memory), "total": memory.total},
    )
