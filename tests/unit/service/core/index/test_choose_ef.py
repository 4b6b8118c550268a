"""The smallest ef that reaches a recall is found, for simulated searches and a real graph."""

from pathlib import Path

import numpy as np
import pytest

from service.core.errors import InvalidInput
from service.core.index.choose_ef import choose_ef
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import RowFilter
from service.core.types import Floats, Rows
from tests.support.vectors import built, units

DEPTH = 10


def random_vectors(count: int, *, seed: int) -> Floats:
    return units(count, 32, seed=seed)


class Losing:
    """A search whose last rows are missing: `losing` maps the least ef to how many are missing."""

    def __init__(self, keys: Floats, losing: dict[int, int]) -> None:
        self.keys, self.losing, self.asked = keys.astype(np.float32), losing, list[int]()

    def search(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter
    ) -> tuple[Floats, Rows]:
        self.asked.append(ef)
        lost = next(lost for least, lost in self.losing.items() if ef >= least)
        rows = np.argsort(-(queries @ self.keys.T), axis=1)[:, :count]
        rows[:, count - lost :] = -1
        return np.zeros(rows.shape, np.float32), rows


def chosen(segment: object, keys: Floats, queries: Floats, recall: float):
    everything = RowFilter(start=0, stop=len(keys))
    return choose_ef(segment, keys, queries, recall=recall, depth=DEPTH, row_filter=everything)


@pytest.mark.parametrize(("recall", "ef"), [(0.5, 10), (0.8, 10), (0.9, 137), (1.0, 2999)])
def test_it_is_the_smallest(recall: float, ef: int) -> None:
    keys, queries = random_vectors(300, seed=0).astype(np.float16), random_vectors(20, seed=1)
    segment = Losing(keys, {2999: 0, 137: 1, 0: 2})
    found = chosen(segment, keys, queries, recall)
    assert found.ef == ef
    assert found.recall == pytest.approx({10: 0.8, 137: 0.9, 2999: 1.0}[ef])
    assert len(segment.asked) < 25
    assert found.as_metrics() == {
        "search.recall@10": pytest.approx(100 * found.recall),
        "search.recall_queries": 20.0,
    }


def test_a_recall_out_of_reach_is_an_error_that_says_what_is_reached() -> None:
    keys, queries = random_vectors(100, seed=0).astype(np.float16), random_vectors(5, seed=1)
    with pytest.raises(InvalidInput, match=r"ef 4096, has 0\.9000.*--ef-construction"):
        chosen(Losing(keys, {0: 1}), keys, queries, 0.95)


def test_a_real_graph_reaches_it(tmp_path: Path) -> None:
    keys, queries = random_vectors(3000, seed=0).astype(np.float16), random_vectors(50, seed=1)
    segment = built(keys, tmp_path / "index", IndexParameters(m=4, ef_construction=16))
    found = chosen(segment, keys, queries, 0.9)
    assert found.recall >= 0.9
    assert found.ef > DEPTH
    everything = RowFilter(start=0, stop=len(keys))
    _, rows = segment.search(queries, count=DEPTH, ef=found.ef, row_filter=everything)
    exact = np.argsort(-(queries @ keys.astype(np.float32).T), axis=1)[:, :DEPTH]
    shares = [len(set(a) & set(b)) / DEPTH for a, b in zip(rows, exact, strict=True)]
    assert np.mean(shares) == pytest.approx(found.recall, abs=0.005)
