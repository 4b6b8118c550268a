"""Arrivals, percentiles, recall and bytes a key."""

from pathlib import Path

import numpy as np
import pytest

from loadtests.clients.open_loop import poisson_starts
from loadtests.measure.footprint import bytes_per_key
from loadtests.measure.latency_summary import Summary
from loadtests.measure.recall import measure_recall
from service.core.bundle.bundle import Bundle
from service.core.index.recall import recall_per_query
from service.core.memory.knowledge_memory import KnowledgeMemory


def test_arrivals_are_poisson() -> None:
    starts = poisson_starts(rate=100, seconds=200, seed=1)
    gaps = np.diff(starts)
    assert len(starts) == 20_000
    assert np.mean(gaps) == pytest.approx(0.01, rel=0.05)
    assert np.std(gaps) == pytest.approx(0.01, rel=0.05)
    assert poisson_starts(rate=100, seconds=2, seed=1) == starts[:200]


def test_a_summary_is_in_milliseconds() -> None:
    summary = Summary.of([number / 1000 for number in range(1, 102)])
    figures = (summary.count, summary.p50, summary.p99, summary.maximum)
    assert figures == pytest.approx((101, 51, 100, 101))
    with pytest.raises(ValueError, match="no request"):
        Summary.of([])


def test_recall_counts_retrieved_rows_and_no_row_twice(trigram_bundle: Bundle) -> None:
    view = KnowledgeMemory(trigram_bundle).view
    queries = np.asarray(trigram_bundle.keys[:3], np.float32)
    assert measure_recall(view, queries, depth=4).mean == 1.0
    similarities, rows = view.retrieve(queries, depth=4, exact=True)
    worse = rows.copy()
    worse[0, 1:] = worse[0, 0]  # one row four times
    worse[1, 2:] = -1
    recalls = recall_per_query(
        queries=queries,
        retrieved=worse,
        exact_rows=rows,
        exact_similarities=similarities,
        vectors_of=view.vectors,
    )
    assert recalls.tolist() == [0.25, 0.5, 1.0]


def test_bytes_per_key_come_from_the_manifest(tiny_bundle_folder: Path) -> None:
    size = bytes_per_key(tiny_bundle_folder, allowance=300)
    assert size.keys == 14
    assert size.allowed == 300 + 4 * 9 / 14  # nine votes over fourteen keys
    assert size.total == size.index + size.values
