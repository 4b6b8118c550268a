"""The control groups (cgroups) that limit the memory of this process: its own, and those above it.

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

ROOT = Path("/")
_GROUPS_OF_PROCESS, _MOUNT = "proc/self/cgroup", "sys/fs/cgroup"


@dataclass(frozen=True, kw_only=True)
class _Version:
    """The names that a version of cgroups has for its files; `mount` is a folder of `_MOUNT`."""

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


@dataclass(frozen=True, kw_only=True)
class ControlGroup:
    """A group's folder, and the names of its files."""

    folder: Path
    version: _Version

    def limit(self) -> int | None:
        """Bytes that the group may take; None where it has no limit that can be read."""
        return self._read(self.version.limit)

    def free(self) -> int | None:
        """Bytes that the group can still take; None where it has no limit that can be read."""
        limit, used = self.limit(), self._read(self.version.used)
        if limit is None or used is None:
            return None
        return max(0, limit - used + self._cache())

    def _read(self, name: str) -> int | None:
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):  # no file, or the word "max"
            return None

    def _cache(self) -> int:
        """The bytes of file cache in the group's memory.stat, 0 where it does not say."""
        name = self.version.cache
        try:
            lines = (self.folder / "memory.stat").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


def control_groups(root: Path = ROOT) -> Iterator[ControlGroup]:
    """Each group that can limit this process's memory; `root` has /proc and /sys."""
    for version, path in _groups_of_process(root):
        mount = root / _MOUNT / version.mount
        group = mount / path
        # In a container the path may be the host's, of which the container sees the end alone.
        folders = [group, *group.parents] if group.is_dir() else [mount]
        for folder in folders:
            if not folder.is_relative_to(mount):
                break
            yield ControlGroup(folder=folder, version=version)


def _groups_of_process(root: Path) -> Iterator[tuple[_Version, str]]:
    """The groups of this process that can limit memory, each with its path below the mount."""
    try:
        lines = (root / _GROUPS_OF_PROCESS).read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield _V2, path.lstrip("/")
        elif "memory" in controllers.split(","):
            yield _V1, path.lstrip("/")
