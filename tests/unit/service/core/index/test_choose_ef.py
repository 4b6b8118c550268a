"""The smallest ef that reaches a recall is found, for simulated searches and a real graph."""

from pathlib import Path

import numpy as np
import pytest

from service.core.index.choose_ef import smallest_ef
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import RowFilter
from service.core.types import Floats, Rows
from tests.support.vectors import built, units

DEPTH = 10
KEYS, QUERIES = units(3000, 32, seed=0).astype(np.float16), units(50, 32, seed=1)


class Losing:
    """A search whose last rows are missing: `losing` maps the least ef to how many are missing."""

    def __init__(self, losing: dict[int, int]) -> None:
        self.losing, self.asked = losing, list[int]()

    def search(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter | None
    ) -> tuple[Floats, Rows]:
        self.asked.append(ef)
        lost = next(lost for least, lost in self.losing.items() if ef >= least)
        rows = np.argsort(-(queries @ KEYS[:300].astype(np.float32).T), axis=1)[:, :count]
        rows[:, count - lost :] = -1
        return np.zeros(rows.shape, np.float32), rows


@pytest.mark.parametrize(
    ("recall", "shortest", "ef", "reached"),
    [
        (0.5, None, DEPTH, 0.8),
        (0.5, 64, 64, 0.8),
        (0.8, None, DEPTH, 0.8),
        (0.9, None, 137, 0.9),
        (1.0, None, 2999, 1.0),
        (1.0, 4000, 4000, 1.0),
        (1.1, None, 4096, 1.0),  # out of reach
    ],
)
def test_it_is_the_smallest(recall: float, shortest: int | None, ef: int, reached: float) -> None:
    segment = Losing({2999: 0, 137: 1, 0: 2})
    found = smallest_ef(
        segment, KEYS[:300], QUERIES[:20], recall=recall, shortest=shortest, depth=DEPTH
    )
    assert (found.ef, found.recall) == (ef, pytest.approx(reached))
    assert len(segment.asked) < 25
    assert found.as_metrics() == {
        "search.recall@10": pytest.approx(100 * reached),
        "search.recall_queries": 20.0,
    }


def test_a_real_graph_reaches_it(tmp_path: Path) -> None:
    segment = built(KEYS, tmp_path / "index", IndexParameters(m=4, ef_construction=16))
    found = smallest_ef(segment, KEYS, QUERIES, recall=0.9, depth=DEPTH)
    assert found.recall >= 0.9 and found.ef > DEPTH
    _, rows = segment.search(QUERIES, count=DEPTH, ef=found.ef, row_filter=None)
    exact = np.argsort(-(QUERIES @ KEYS.astype(np.float32).T), axis=1)[:, :DEPTH]
    shares = [len(set(a) & set(b)) / DEPTH for a, b in zip(rows, exact, strict=True)]
    assert np.mean(shares) == pytest.approx(found.recall, abs=0.005)
