"""How the metadata items of a query and of a candidate overlap.

Shapes: n queries, m candidates, N rows of the memory, L labels, M metadata items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.preprocessing import normalize

from service.core.types import Doubles
from training.combining.runs import FinishedRun
from training.datasets.dataset import Dataset
from training.reranking.pairs import Pairs
from training.reranking.terms import Terms, inverse_frequency


@dataclass(frozen=True, kw_only=True, eq=False)
class Items:
    """The metadata items of all sides, as they are linked in the data."""

    queries: csr_matrix  # [n, M]
    labels: csr_matrix  # [L, M]
    instances: csr_matrix  # [N, M]


def item_features(items: Items, labels_of: csr_matrix, candidates: Pairs) -> dict[str, Doubles]:
    """Features by name, [m] each; labels_of [N, L] has the labels of the memory's rows."""
    ours, theirs = (
        csr_matrix(table != 0, dtype=np.float64) for table in (items.queries, items.labels)
    )
    weights = inverse_frequency(theirs)
    common, of_query, of_label = Terms(queries=ours, labels=theirs, weights=weights).overlap(
        candidates
    )
    # The cosine of the query's items and those of the rows that have the label.
    of_rows = csr_matrix((labels_of != 0).T.astype(np.float64) @ (items.instances != 0))  # [L, M]
    profiles = normalize(of_rows.multiply(np.sqrt(weights)).tocsr())
    of_queries = normalize(ours.multiply(np.sqrt(weights)).tocsr())
    cosine, _, _ = Terms(
        queries=of_queries, labels=profiles, weights=np.ones(ours.shape[1])
    ).overlap(candidates)
    return {
        "items in common": common,
        "items of the label in the query": common / np.maximum(of_label, 1e-9),
        "items of the query in the label": common / np.maximum(of_query, 1e-9),
        "items of the query": of_query,
        "items of the label's rows": cosine,
    }


def items_held_out(run: FinishedRun) -> Items:
    """The items of the held-out rows, of labels, and of the rows of their memory."""
    of_rows, slices = run.dataset.train.metadata_of, run.slices
    assert of_rows is not None
    return Items(
        queries=of_rows[slices.held_out],
        labels=run.dataset.label_metadata,
        instances=of_rows[slices.kept],
    )


def items_of_test(dataset: Dataset) -> Items:
    """The items of the test rows, of labels, and of all training rows."""
    return Items(
        queries=dataset.test.metadata_of,
        labels=dataset.label_metadata,
        instances=dataset.train.metadata_of,
    )
