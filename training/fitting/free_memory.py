"""How much memory a process can still take: that of the machine, or of its container if less.

A container's limit is that of its control group (cgroup), or of a group above it:

| version | limit                   | in use                  | in use, but given back on demand |
|---------|-------------------------|-------------------------|----------------------------------|
| 2       | `memory.max`            | `memory.current`        | `inactive_file`                  |
| 1       | `memory.limit_in_bytes` | `memory.usage_in_bytes` | `total_inactive_file`            |

The last column is a line of `memory.stat`: cached parts of files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path("/")
GROUPS_OF_PROCESS, MOUNT = "proc/self/cgroup", "sys/fs/cgroup"


@dataclass(frozen=True, kw_only=True)
class _Version:
    """The names that a version of cgroups has for its files; `mount` is a folder of `MOUNT`."""

    mount: str
    limit: str
    used: str
    cache: str


_V2 = _Version(mount=".", limit="memory.max", used="memory.current", cache="inactive_file")
_V1 = _Version(
    mount="memory",
    limit="memory.limit_in_bytes",
    used="memory.usage_in_bytes",
    cache="total_inactive_file",
)


def free_bytes(root: Path = ROOT) -> int:
    """Memory that this process can still take, in bytes; `root` has /proc and /sys."""
    available = int(psutil.virtual_memory().available)
    return min([available, *_free_of_groups(root)])


def _free_of_groups(root: Path) -> Iterator[int]:
    """What each control group of the process, and each one above it, leaves free."""
    for version, path in _groups(root):
        mount = root / MOUNT / version.mount
        group = mount / path
        # In a container the path may be the host's, of which the container sees the end alone.
        folders = [group, *group.parents] if group.is_dir() else [mount]
        for folder in folders:
            if not folder.is_relative_to(mount):
                break
            free = _free_of(folder, version)
            if free is not None:
                yield free


def _groups(root: Path) -> Iterator[tuple[_Version, str]]:
    """The groups of this process that can limit memory, each with its path below the mount."""
    try:
        lines = (root / GROUPS_OF_PROCESS).read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield _V2, path.lstrip("/")
        elif "memory" in controllers.split(","):
            yield _V1, path.lstrip("/")


def _free_of(group: Path, version: _Version) -> int | None:
    """The limit of a group less what is in use; None where it has no limit that can be read."""
    try:
        limit = (group / version.limit).read_text().strip()
        if limit == "max":
            return None
        used = int((group / version.used).read_text())
        return max(0, int(limit) - used + _cache(group / "memory.stat", version.cache))
    except (OSError, ValueError):
        return None


def _cache(statistics: Path, name: str) -> int:
    """The bytes of file cache in a group's memory.stat, 0 where it does not say."""
    try:
        lines = statistics.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
