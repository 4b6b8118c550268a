"""An array of numbers that one writer appends to while readers use what is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_FEW = 4  # first capacity

Number = TypeVar("Number", bound=np.generic)


class Growing(Generic[Number]):
    """Numbers of one type. A reader's `view` never changes below the count that the reader knows.

    The writer may replace numbers beyond that count: a dropped draft left them there.
    """

    __slots__ = ("_array", "_count")

    def __init__(self, kind: type[Number]) -> None:
        """Start empty."""
        self._array: NDArray[Number] = np.empty(_FEW, kind)
        self._count = 0

    def __len__(self) -> int:
        """Return how many numbers there are."""
        return self._count

    def append(self, number: float) -> None:
        """Append a number."""
        if self._count == len(self._array):
            self._array = np.resize(self._array, 2 * self._count)
        self._array[self._count] = number
        self._count += 1

    def extend(self, numbers: Sequence[float]) -> None:
        """Append many numbers, in a fraction of the time of single ones."""
        stop = self._count + len(numbers)
        if stop > len(self._array):
            self._array = np.resize(self._array, max(stop, 2 * self._count))
        self._array[self._count : stop] = numbers
        self._count = stop

    def cut(self, count: int) -> None:
        """Keep the first `count` numbers."""
        self._count = min(count, self._count)

    def drop_from(self, least: int) -> None:
        """Forget the numbers from `least` on, of an ascending array."""
        while self._count and self._array[self._count - 1] >= least:
            self._count -= 1

    def view(self) -> NDArray[Any]:
        """Return the numbers so far."""
        return self._array[: self._count]
