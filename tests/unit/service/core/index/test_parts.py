"""Short walks through many segments miss no row within the retrieval depth."""

import numpy as np
import pytest

from service.core.index.libraries import IndexParameters
from service.core.index.parts import FIRST_ROWS, Part
from service.core.index.protocol import Segment, Tombstones
from tests.support.vectors import built, units

ROWS, DIMENSION, EF = 4_000, 16, 300
FIRST = 5_000


def unit(count: int, seed: int) -> np.ndarray:
    return units(count, DIMENSION, seed=seed)


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    path = tmp_path_factory.mktemp("segment") / "segment.index"
    return built(unit(ROWS, 0).astype(np.float16), path, IndexParameters(m=16, ef_construction=100))


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return unit(6, 1).astype(np.float32)


def truth(queries: np.ndarray, count: int) -> np.ndarray:
    scores = queries @ unit(ROWS, 0).astype(np.float16).astype(np.float32).T
    return np.argsort(-scores, axis=1)[:, :count]


def overlap(found: np.ndarray, expected: np.ndarray) -> float:
    pairs = zip(found.tolist(), expected.tolist(), strict=True)
    return float(np.mean([len(set(one) & set(other)) / len(other) for one, other in pairs]))


def test_rows_above_the_mark_are_found_and_rows_below_may_be_left_out(
    segment: Segment, queries: np.ndarray
) -> None:
    sealed = Part(
        first=FIRST,
        stop=FIRST + ROWS,
        rows=FIRST + np.arange(ROWS),
        segment=segment,
        dead=Tombstones(size=ROWS),
    )
    best = truth(queries, 200)
    whole, _ = sealed.search(queries, count=200, ef=EF)
    # For every second query, only the 20 best rows of this part are within the depth.
    above = whole[:, 20].copy()
    above[::2] = -1.0

    _, rows = sealed.search(queries, count=200, ef=EF, above=above)

    assert overlap(rows[::2] - FIRST, best[::2]) > 0.98
    assert overlap(rows[1::2, :20] - FIRST, best[1::2, :20]) > 0.98
    assert (rows[1::2, FIRST_ROWS:] == -1).all()
