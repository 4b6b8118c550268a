"""The processor time of a piece of work."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import TypeVar

Value = TypeVar("Value")


def timed(work: Callable[[], Value]) -> tuple[Value, float]:
    """The work's value and its processor time in milliseconds, over all threads."""
    start = process_time()
    value = work()
    return value, 1_000.0 * (process_time() - start)
