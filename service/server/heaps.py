"""Few heaps for all threads of a process.

glibc gives threads up to eight heaps a core. What one of them has freed serves no other, and a
thread that runs now and then, such as the check of the log, keeps megabytes for itself.
"""

from __future__ import annotations

import ctypes

HEAPS = 2
_M_ARENA_MAX = -8  # of malloc.h


def share_heaps() -> bool:
    """Let all threads that start from now on share `HEAPS` heaps; returns whether that was done.

    A C library without glibc's `mallopt` has its own ways, and is left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, HEAPS))
