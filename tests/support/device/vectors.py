"""Random unit vectors in fp16, and a search among them that is slow and obvious."""

import numpy as np

DIMENSION = 8


def unit_rows(rows: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((rows, DIMENSION))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float16)


QUERIES = unit_rows(3, seed=9).astype(np.float32)  # the device's rounding does not change them


def slow_search(keys: np.ndarray, *, allowed: list[int], count: int) -> list[list[int]]:
    """For each query the allowed rows by descending similarity, then -1."""
    similarities = QUERIES @ keys.astype(np.float32).T
    best = [sorted(allowed, key=lambda row: -line[row])[:count] for line in similarities]
    return [rows + [-1] * (count - len(rows)) for rows in best]
