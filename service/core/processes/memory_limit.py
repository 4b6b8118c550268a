"""How much memory the processes of a machine may take: what its container allows, or its own."""

from __future__ import annotations

import os
from pathlib import Path

from service.core.processes.control_groups import ROOT, control_groups

# Of a machine's memory; the rest is left to the system, its caches and other programs.
SHARE_OF_MACHINE = 0.8


def memory_limit(root: Path = ROOT, machine: int | None = None) -> int:
    """Bytes that this process, its parents and its children may take together.

    `root` has /proc and /sys; `machine` are the bytes of the machine's memory, by default its own.
    """
    installed = machine or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for group in control_groups(root) if (limit := group.limit()) is not None]
    return min([int(SHARE_OF_MACHINE * installed), *limits])
