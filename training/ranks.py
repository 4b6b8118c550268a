"""The processes that `torchrun` starts for one run: the rank of this one, and how to leave them."""

from __future__ import annotations

import sys


def process_of_run() -> tuple[int, int]:
    """Return this process's rank among those that train together, and their number."""
    if not _joined():
        return 0, 1
    from torch import distributed

    return distributed.get_rank(), distributed.get_world_size()


def leave_run() -> None:
    """Close the connections to the other processes, if there are any.

    A process that exits with open connections may be aborted (SIGABRT): gloo's threads still hold
    Python's tensors when the interpreter ends. `torchrun` then kills processes that write files.
    """
    if _joined():
        from torch import distributed

        distributed.destroy_process_group()


def _joined() -> bool:
    if "torch.distributed" not in sys.modules:  # nothing is trained; importing torch takes seconds
        return False
    from torch import distributed

    joined: bool = distributed.is_available() and distributed.is_initialized()
    return joined
