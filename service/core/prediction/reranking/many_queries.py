"""The second ranking of many queries, for offline evaluation: query by query, as it is served.

Shapes: n queries, b retrieved keys of a query at most, m ranked labels, k of them that are kept,
d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.core.prediction.many_queries import LabelOrder, RankedLabels
from service.core.prediction.reranking.candidate_labels import CandidateLabels
from service.core.prediction.reranking.features import Candidates
from service.core.prediction.reranking.reranker import Reranker
from service.core.types import Floats, Rows


def candidates_of(
    queries: Sequence[str], vectors: Floats, retrieved: tuple[Floats, Rows], ranked: RankedLabels
) -> list[Candidates]:
    """The ranked labels of each query [n, m], its vector [n, d], and its keys [n, b]."""
    similarities, rows = retrieved
    keys = np.count_nonzero(rows >= 0, axis=1).tolist()  # places without a row are the last
    labels = np.count_nonzero(ranked.labels >= 0, axis=1).tolist()
    return [
        Candidates(
            query=text,
            vector=vectors[query],
            columns=ranked.labels[query, :label_count],
            scores=ranked.scores[query, :label_count],
            rows=rows[query, :key_count],
            similarities=similarities[query, :key_count],
        )
        for query, (text, key_count, label_count) in enumerate(
            zip(queries, keys, labels, strict=True)
        )
    ]


def rerank_labels(
    reranker: Reranker,
    labels: CandidateLabels,
    candidates: Sequence[Candidates],
    *,
    top_k: int,
    order: LabelOrder,
) -> RankedLabels:
    """The `top_k` best labels of each query by the second ranking; equal scores by label id."""
    shape = (len(candidates), top_k)
    again = RankedLabels(labels=np.full(shape, -1, np.int64), scores=np.zeros(shape))
    for query, of_query in enumerate(candidates):
        scores = reranker.scores(of_query, labels)
        best = np.lexsort((order.rank_of_label[of_query.columns], -scores))[:top_k]
        again.labels[query, : len(best)] = of_query.columns[best]
        again.scores[query, : len(best)] = scores[best]
    return again
