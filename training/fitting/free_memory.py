"""How much memory a process can still take: that of the machine, or of its container if less."""

from __future__ import annotations

from pathlib import Path

import psutil

from service.core.processes.control_groups import ROOT, control_groups


def free_bytes(root: Path = ROOT) -> int:
    """Memory that this process can still take, in bytes; `root` has /proc and /sys."""
    available = int(psutil.virtual_memory().available)
    free = [free for group in control_groups(root) if (free := group.free()) is not None]
    return min([available, *free])
