"""Memory-mapped arrays: `.npy` files, checks of the numbers in them, and matrices to fill.

Instead of an optional file that is missing, there is a constant array, which takes no memory.

A checksum proves that a file is unchanged, not that its writer was right. So each array is compared
with what its reader relies on: type and shape whenever it is mapped, and the numbers when a bundle
is verified. Every error is a `BundleAltered` that names the file. A check reads the file in blocks,
so it takes little memory.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.core.errors import BundleAltered
from service.core.types import Halves

_BLOCK = 1 << 20  # numbers that are checked at once
_HALF_EXPONENT = np.uint16(0x7C00)  # in infinities and nan, all of these bits are set


def mapped(
    path: Path, kind: type[np.generic], shape: Sequence[int | None] = (None,)
) -> NDArray[Any]:
    """Map a `.npy` file as a plain array, because indexing an `np.memmap` is slow.

    Raises `BundleAltered` unless the array has `kind` and `shape`; None in `shape` is any length.
    """
    try:
        array = np.asarray(np.load(path, mmap_mode="r"))
    except OSError:
        raise
    except Exception as error:  # numpy's parser passes on errors of Python's own tokenizer
        raise BundleAltered(f"{path} holds no array: {error}") from error
    fits = array.ndim == len(shape) and all(
        wanted in (None, length) for length, wanted in zip(array.shape, shape, strict=True)
    )
    if array.dtype != kind or not fits or not array.flags.c_contiguous:
        wanted_shape = ", ".join("any" if length is None else str(length) for length in shape)
        raise BundleAltered(
            f"{path} holds {array.dtype} {list(array.shape)},"
            f" expected {np.dtype(kind)} [{wanted_shape}]"
        )
    return array


def constant(number: np.generic, length: int) -> NDArray[Any]:
    """Return an array [length] of equal numbers that takes no memory."""
    return np.broadcast_to(number, (length,))


def is_constant(array: NDArray[Any]) -> bool:
    """Return whether `constant` made an array."""
    return array.strides == (0,)


def without_repetition(array: NDArray[Any], usual: np.generic) -> NDArray[Any]:
    """Return an array [n], as a constant one if all its numbers are the usual one."""
    return constant(usual, len(array)) if (array == usual).all() else array


def unnamed_matrix(folder: Path, shape: tuple[int, int]) -> Halves:
    """Return an empty matrix [n, d] in an unnamed file in `folder`; n and d are above 0.

    It need not stay in main memory, and the file is gone once nothing refers to the matrix. Raises
    `OSError` if the disk has no room.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        # Subtle: if a page could not be written later, the process would be killed.
        os.posix_fallocate(file.fileno(), 0, 2 * math.prod(shape))
        return np.asarray(np.memmap(file, np.float16, "r+", shape=shape))


def require_within(path: Path, numbers: NDArray[Any], low: float, high: float) -> None:
    """Raise `BundleAltered` unless low <= number < high for all numbers; nan is refused."""
    for block in _blocks(numbers):
        least, greatest = block.min(), block.max()
        if not (least >= low and greatest < high):
            raise BundleAltered(
                f"{path} holds numbers from {least} to {greatest};"
                f" they must be at least {low} and below {high}"
            )


def require_ascending(path: Path, numbers: NDArray[Any], *, strictly: bool) -> None:
    """Raise `BundleAltered` unless numbers [n] ascend; equal ones are allowed unless `strictly`."""
    for start in range(0, len(numbers) - 1, _BLOCK):
        block = numbers[start : start + _BLOCK + 1]
        ordered = block[1:] > block[:-1] if strictly else block[1:] >= block[:-1]
        if not ordered.all():
            raise BundleAltered(f"{path} is not ascending")


def require_offsets(path: Path, offsets: NDArray[np.int64], *, end: int) -> None:
    """Raise `BundleAltered` unless offsets [n + 1] ascend from 0 to `end`."""
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end:
        ends = f"{offsets[0]} to {offsets[-1]}" if len(offsets) else "nothing"
        raise BundleAltered(f"{path} goes from {ends}, expected 0 to {end}")
    require_ascending(path, offsets, strictly=False)


def require_finite(path: Path) -> None:
    """Raise `BundleAltered` if a number in a file of fp16 vectors is infinite or nan.

    The file is mapped only for this check. Otherwise all its pages would count as memory in use.
    """
    for block in _blocks(np.asarray(np.load(path, mmap_mode="r")).view(np.uint16)):
        # Compared as integers: numpy converts 16-bit floats one by one, ten times as slowly.
        if ((block & _HALF_EXPONENT) == _HALF_EXPONENT).any():
            raise BundleAltered(f"{path} holds a number that is not finite")


def _blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the numbers of an array of any shape, block by block; an empty array yields nothing."""
    flat = array.reshape(-1)
    return (flat[start : start + _BLOCK] for start in range(0, len(flat), _BLOCK))
