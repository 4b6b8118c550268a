"""Few heaps for all threads of a process, and their free pages given back.

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


def give_back_free_pages() -> bool:
    """Return the free pages of all heaps to the system; returns whether there were any.

    By itself glibc returns only those at the end of a heap. To be called after work that takes much
    memory for a short time, in its thread: it takes some milliseconds, without the interpreter's
    lock. A C library without glibc's `malloc_trim` is left alone.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return False
    return bool(malloc_trim(ctypes.c_size_t(0)))
