"""The memory and CPU cores that this process may use, and the settings of its heaps.

A process is limited by its control group (cgroup, version 1 or 2) and by the groups above it.
Cached parts of files count as used, but are given back on demand. CPU time is a quota per period.

glibc gives threads up to eight heaps per core. Memory freed in one heap cannot be used by another,
and a thread that seldom runs keeps megabytes. So all threads share a few heaps.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

ROOT = Path("/")
_GROUPS_OF_PROCESS, _MOUNT = "proc/self/cgroup", "sys/fs/cgroup"
# The share of a machine's memory to use; the rest is for the system, caches and other programs.
SHARE_OF_MACHINE = 0.8
HEAPS = 2
_M_ARENA_MAX = -8  # from malloc.h


class _Files(NamedTuple):
    """The names of files in a version of cgroups."""

    quota: tuple[str, ...]
    limit: str
    used: str
    cache: str  # a line of `memory.stat`


_V2 = _Files(("cpu.max",), "memory.max", "memory.current", "inactive_file")
_V1 = _Files(
    ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)


class ControlGroup(NamedTuple):
    """The folder of a group, and the names of its files."""

    folder: Path
    files: _Files

    def limit(self) -> int | None:
        """Return the bytes that the group may use; None if there is no readable limit."""
        return self._read(self.files.limit)

    def cores(self) -> float | None:
        """Return the CPU time that the group may use, in cores; None if there is no limit."""
        try:
            texts = [(self.folder / name).read_text() for name in self.files.quota]
            quota, period = map(int, " ".join(texts).split())
        except (OSError, ValueError):  # there is no file, or it says "max"
            return None
        return quota / period if quota > 0 and period > 0 else None

    def free(self) -> int | None:
        """Return the bytes that the group can still use; None if there is no readable limit."""
        limit, used = self.limit(), self._read(self.files.used)
        if limit is None or used is None:
            return None
        try:
            lines = (self.folder / "memory.stat").read_text().splitlines()
        except OSError:
            lines = []
        facts = dict(line.split(maxsplit=1) for line in lines)
        return max(0, limit - used + int(facts.get(self.files.cache, 0)))

    def _read(self, name: str) -> int | None:
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):  # there is no file, or it says "max"
            return None


def control_groups(
    root: Path = ROOT, controller: Literal["memory", "cpu"] = "memory"
) -> Iterator[ControlGroup]:
    """Yield each group with this controller that limits this process; `root` has /proc and /sys."""
    try:
        lines = (root / _GROUPS_OF_PROCESS).read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / _MOUNT / (controller if controllers else ".")
        group = mount / path.lstrip("/")
        # In a container, this may be the host's path, of which the container sees only the end.
        for folder in [group, *group.parents] if group.is_dir() else [mount]:
            if folder.is_relative_to(mount):
                yield ControlGroup(folder, _V1 if controllers else _V2)


def memory_limit(root: Path = ROOT, machine: int | None = None) -> int:
    """Return the bytes that this process, its parents and its children may use together.

    `root` has /proc and /sys. `machine` is the memory in bytes, by default that of this machine.
    """
    installed = machine or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for group in control_groups(root) if (limit := group.limit()) is not None]
    return min([int(SHARE_OF_MACHINE * installed), *limits])


def available_cores(root: Path = ROOT) -> int:
    """Return the whole cores that this process may use, at least 1; `root` has /proc and /sys."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quotas = [quota for group in control_groups(root, "cpu") if (quota := group.cores())]
    return max(1, int(min([cores, *quotas])))


def c_function(name: str) -> Callable[..., Any] | None:
    """Return a function of the C library, or None if the library does not have it."""
    try:
        function: Callable[..., Any] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
    return function


def share_heaps() -> bool:
    """Let all threads that start from now on share `HEAPS` heaps; return whether this worked."""
    mallopt = c_function("mallopt")
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, HEAPS))


def give_back_free_pages() -> bool:
    """Return the free pages of all heaps to the system; return whether there were any.

    By itself, glibc returns only pages at the end of a heap. Call this after work that briefly
    takes much memory, in the thread of that work. It takes some milliseconds, without the
    interpreter's lock. Only glibc has `malloc_trim`.
    """
    malloc_trim = c_function("malloc_trim")
    return malloc_trim is not None and bool(malloc_trim(ctypes.c_size_t(0)))
