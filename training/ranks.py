"""The processes that train one run together, as `torchrun` starts them: place, number and end."""

from __future__ import annotations

import sys


def process_of_run() -> tuple[int, int]:
    """The place of this process among those that train together, and their number."""
    if not _joined():
        return 0, 1
    from torch import distributed

    return distributed.get_rank(), distributed.get_world_size()


def leave_run() -> None:
    """End the connections to the other processes, if this process has some.

    A process that exits with them open may be aborted (SIGABRT): gloo's threads still hold tensors
    of Python when the interpreter ends. `torchrun` then kills the processes that still write files.
    """
    if _joined():
        from torch import distributed

        distributed.destroy_process_group()


def _joined() -> bool:
    if "torch.distributed" not in sys.modules:  # nothing is trained yet, and torch takes seconds
        return False
    from torch import distributed

    joined: bool = distributed.is_available() and distributed.is_initialized()
    return joined
