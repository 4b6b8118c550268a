"""Texts and vectors without end, recombined from real ones; the same for the same seed.

A recombined text is the first half of one real text's words and the second half of another's. A
drawn vector is the sum of two real texts' unit vectors and noise, at unit length.

Shapes: S source texts, n texts drawn, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.core.types import Floats, Halves

# Length of the noise, where each of the two real vectors has length 1.
NOISE = 0.5
_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Which two source texts each drawn text comes from, [n] each."""

    heads: NDArray[np.int64]
    tails: NDArray[np.int64]

    @classmethod
    def drawn(cls, count: int, *, sources: int, seed: int) -> Pairs:
        """Draw `count` pairs of `sources` texts."""
        heads, tails = np.random.default_rng(seed).integers(sources, size=(2, count))
        return cls(heads=heads, tails=tails)

    def texts(self, sources: Sequence[str]) -> list[str]:
        """The recombined texts [n]."""
        return [
            recombined(sources[head], sources[tail])
            for head, tail in zip(self.heads.tolist(), self.tails.tolist(), strict=True)
        ]

    def vectors(self, sources: Halves, *, seed: int) -> Halves:
        """The drawn unit vectors [n, d], from those of the source texts [S, d]."""
        random, drawn = (
            np.random.default_rng(seed),
            np.empty_like(sources, shape=self.shape(sources)),
        )
        for start in range(0, len(drawn), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            noise = random.standard_normal(drawn[rows].shape, dtype=np.float32)
            noise *= NOISE / np.sqrt(noise.shape[1])
            summed = noise + sources[self.heads[rows]] + sources[self.tails[rows]]
            drawn[rows] = unit(summed)
        return drawn

    def shape(self, sources: Halves) -> tuple[int, int]:
        """The shape of the drawn vectors."""
        return len(self.heads), sources.shape[1]


def recombined(head: str, tail: str) -> str:
    """The first half of one text's words, and the second half of the other's."""
    first, second = head.split(), tail.split()
    return " ".join([*first[: (len(first) + 1) // 2], *second[len(second) // 2 :]])


def unit(vectors: Floats) -> Floats:
    """Vectors at length 1."""
    scaled: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled
