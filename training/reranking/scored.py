"""The test rows as the bundle of a run with a second ranking ranks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from service.core.prediction.reranking.many_queries import candidates_of, rerank_labels
from service.core.prediction.reranking.reranker import reranker_of
from training.checkpoints import second_ranking
from training.evaluation.results import RERANKED, measured
from training.experiments.sweeps import Measured, Scoring
from training.reranking.queries import queries_of_test


def with_second_ranking(
    results: Sequence[Measured], scoring: Scoring, folder: Path
) -> list[Measured]:
    """The results of a checkpoint's folder; first that of its second ranking, if it has one.

    Only then it is the chosen one, and the memory's own ranking a sweep.
    """
    if not second_ranking.is_second_ranking(folder):
        return list(results)
    others = [(replace(result, chosen=False), rows) for result, rows in results]
    return [_reranked(scoring, folder), *others]


def _reranked(scoring: Scoring, folder: Path) -> Measured:
    files, queries, choices = second_ranking.read(folder), queries_of_test(scoring), scoring.choices
    labels, order = queries.labels, queries.labels.memory.label_order
    frequencies = labels.frequencies_of(np.arange(len(labels.texts)))
    reranker = reranker_of(files, trained=frequencies.astype(np.int32))
    ranked = queries.ranked(max(queries.top_k, files.facts.candidates))
    again = rerank_labels(
        reranker,
        labels,
        candidates_of(queries.texts, queries.vectors, queries.retrieved, ranked),
        top_k=queries.top_k,
        order=order,
    )
    return measured(
        scoring.dataset,
        again.labels,
        method=RERANKED,
        memorization=choices.memorization,
        depth=choices.depth,
        tau=choices.tau,
        chosen=True,
        weighted=scoring.weighted,
    )
