"""How much memory the processes of a machine may take: what its container allows, or its own.

A container's limit is that of its control group (cgroup), or of a group above it: `memory.max` in
version 2, `memory.limit_in_bytes` in version 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
# Of a machine's memory; the rest is left to the system, its caches and other programs.
SHARE_OF_MACHINE = 0.8
_GROUPS_OF_PROCESS, _MOUNT = "proc/self/cgroup", "sys/fs/cgroup"


def memory_limit(root: Path = ROOT, machine: int | None = None) -> int:
    """Bytes that this process, its parents and its children may take together.

    `root` has /proc and /sys; `machine` are the bytes of the machine's memory, by default its own.
    """
    installed = machine or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([int(SHARE_OF_MACHINE * installed), *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """The limit of each control group of this process, and of each one above it."""
    for mount, name, path in _groups(root):
        group = mount / path
        # In a container the path may be the host's, of which the container sees the end alone.
        folders = [group, *group.parents] if group.is_dir() else [mount]
        for folder in folders:
            if not folder.is_relative_to(mount):
                break
            try:
                yield int((folder / name).read_text())
            except (OSError, ValueError):  # no limit: no file, or the word "max"
                continue


def _groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Where groups that limit memory are mounted, the name of a limit's file, the group's path."""
    try:
        lines = (root / _GROUPS_OF_PROCESS).read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield root / _MOUNT, "memory.max", path.lstrip("/")
        elif "memory" in controllers.split(","):
            yield root / _MOUNT / "memory", "memory.limit_in_bytes", path.lstrip("/")
