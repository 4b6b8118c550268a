"""Measures the answers of a finished bundle, as it serves them: known queries, and test rows.

Test rows are asked without any test row in the memory, so they stand for new queries.

| metric                         | what it is, in percent                                          |
|--------------------------------|-----------------------------------------------------------------|
| `known.first`, `known.in_ten`  | see `training.evaluation.known_queries`                         |
| `test.P@1`, `.P@5`, `.R@10`    | of the labels of at most `MOST_TEST_ROWS` test rows             |

`known.asked`, `known.of`, `known.clicks` and `test.asked` are numbers of rows and their weight.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from export.bundle.hidden_rows import HiddenRows
from service.core.options import complete_options
from service.core.types import Rows
from training.datasets.dataset import Split
from training.evaluation.known_queries import FIRST, TEN, KnownQueries, sentence
from training.evaluation.metrics import labels_to_rank, precision, ranking_outcome, recall
from training.progress import Report

MOST_TEST_ROWS = 1_000


def drawn_test_rows(count: int) -> Rows:
    """Return the numbers of the test rows that are measured, of `count`."""
    rows: Rows = np.random.default_rng(0).permutation(count)[:MOST_TEST_ROWS]
    return rows


def measure_known(
    hidden: HiddenRows, split: Split, known: KnownQueries, *, report: Report
) -> dict[str, float]:
    """Ask known queries, which are rows of `split`, of the bundle's whole memory."""
    texts = [split.instances.texts[row] for row in known.rows.tolist()]
    report("ask known queries", 0, len(texts))
    facts = hidden.bundle.manifest
    top_k = labels_to_rank(known.filtered, deepest=TEN)
    ranked = hidden.ranked(hidden.whole, texts, complete_options(facts, top_k=top_k))
    report("ask known queries", len(texts), len(texts))
    return {**known.measure(ranked), **known.sizes}


def measure_test(hidden: HiddenRows, test: Split, *, report: Report) -> dict[str, float]:
    """Ask test rows of the memory without them; none without a test row that has a label."""
    rows = drawn_test_rows(len(test))
    asked = test.select(rows)
    options = complete_options(
        hidden.bundle.manifest, top_k=labels_to_rank(asked.filtered, deepest=TEN)
    )
    report("ask test rows", 0, len(rows))
    ranked = hidden.ranked(hidden.view, asked.instances.texts, options)
    report("ask test rows", len(rows), len(rows))
    outcome = ranking_outcome(ranked, asked.labels_of, filtered=asked.filtered)
    if not len(outcome.sizes):
        return {}
    figures = {
        "test.P@1": precision(outcome, k=1),
        "test.P@5": precision(outcome, k=5),
        "test.R@10": recall(outcome, k=TEN),
    }
    return {
        **{name: 100.0 * figure for name, figure in figures.items()},
        "test.asked": float(len(outcome.sizes)),
    }


def sentences(metrics: Mapping[str, float]) -> list[str]:
    """Describe what was measured, from a manifest's metrics."""
    said = [sentence(metrics)] if FIRST in metrics else []
    if "test.P@1" in metrics:
        said.append(
            f"new queries ({metrics['test.asked']:,.0f} test rows, asked before they were in the"
            f" memory): P@1 {metrics['test.P@1']:.1f}, P@5 {metrics['test.P@5']:.1f}, R@10"
            f" {metrics['test.R@10']:.1f}"
        )
    return said
