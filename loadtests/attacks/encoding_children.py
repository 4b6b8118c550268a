"""The encoding children of the service that is attacked."""

from __future__ import annotations

import os
from pathlib import Path

CHILD = b"service.core.encoding.child"


def encoding_children() -> list[int]:
    """The encoding children of the service that this process's parent has started."""
    found = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if CHILD in _read(path)
    ]
    return [child for child in found if _parent(_parent(child)) == os.getppid()]


def _parent(process: int) -> int:
    """The parent of a process, 0 where that has ended."""
    status = _read(Path(f"/proc/{process}/stat")).rpartition(b") ")[2].split()
    return int(status[1]) if status else 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""
