"""Random unit vectors and bitmaps, segments of them, and a slow reference search."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from service.core.index.frozen_segment import FrozenSegment, build_segment
from service.core.index.libraries import IndexParameters
from service.core.types import Bits, Floats, Halves

DIMENSION = 8


def units(rows: int, dimension: int = DIMENSION, *, seed: int = 0) -> Floats:
    """Return random unit vectors [rows, dimension]."""
    drawn = np.random.default_rng(seed).standard_normal((rows, dimension))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def unit_rows(rows: int, dimension: int = DIMENSION, *, seed: int = 0) -> Halves:
    """Return random unit vectors in fp16, as they are stored."""
    return units(rows, dimension, seed=seed).astype(np.float16)


QUERIES = unit_rows(3, seed=9).astype(np.float32)  # exact in fp16, so no device rounds them


def bitmap(rows: int, dead: Collection[int]) -> Bits:
    alive = np.ones(rows, bool)
    alive[list(dead)] = False
    return np.packbits(alive, bitorder="little")


def built(vectors: Halves, path: Path, parameters: IndexParameters) -> FrozenSegment:
    """Build the segment of vectors [n, d] at `path`, and open it."""
    return build_segment(vectors, parameters, path, lambda rows: None)


def slow_search(keys: Halves, *, allowed: list[int], count: int) -> list[list[int]]:
    """Return the `count` most similar allowed rows of each query, filled up with -1."""
    similarities = QUERIES @ keys.astype(np.float32).T
    best = [sorted(allowed, key=lambda row: -line[row])[:count] for line in similarities]
    return [rows + [-1] * (count - len(rows)) for rows in best]
