"""What the memory says of each candidate: votes, similarities and frequencies.

Shapes: n queries, m candidates, N rows of the memory, L labels, b retrieved keys.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from service.core.index.protocol import batches
from service.core.prediction.many_queries import retriever_distributions
from service.core.types import Doubles, Rows
from training.datasets.propensity import label_frequency
from training.evaluation.prediction import Neighbours
from training.reranking.candidates import Candidates, Queries, entries

SHARP, SMOOTH = 0.04, 0.1  # temperatures of instance votes: the nearest few rows, and many
_TOGETHER = 65_536  # pairs whose vectors are multiplied at a time


def memory_features(queries: Queries, candidates: Candidates) -> dict[str, Doubles]:
    """Features by name, [m] each."""
    similarity = similarities(queries, candidates)
    features: dict[str, Doubles] = {
        "score": candidates.scores,
        "score, share of best": candidates.share_of_best(candidates.scores),
        "rank": candidates.ranks.astype(np.float64),
        "similarity": similarity,
        "similarity below best": candidates.below_best(similarity),
        "label frequency": np.log1p(label_frequency(queries.memory.labels_of))[candidates.labels],
    }
    votes = {
        f"instance votes, temperature {tau:g}": instance_votes(queries, tau)
        for tau in (SHARP, SMOOTH)
    }
    votes["label weight"] = label_weights(queries, SMOOTH)
    for name, table in votes.items():
        values = entries(table, candidates)
        features[name] = values
        features[f"{name}, share of best"] = candidates.share_of_best(values)
    return features


def similarities(queries: Queries, candidates: Candidates) -> Doubles:
    """The inner product of each query and its candidate's key, [m]."""
    keys, found = queries.memory.keys[queries.memory.instances :], np.zeros(len(candidates))
    for part in batches(len(found), _TOGETHER):
        of_labels = keys[candidates.labels[part]].astype(np.float32)
        found[part] = np.einsum(
            "md,md->m", queries.vectors[candidates.queries[part]], of_labels, dtype=np.float64
        )
    return found


def instance_votes(queries: Queries, tau: float) -> csr_matrix:
    """[n, L]: the votes of the nearest instances alone (Eq. 7 at lambda 1)."""
    labels_of = csr_matrix(queries.memory.labels_of != 0, dtype=np.float64)
    weights = _weights(queries.retrieved.instances, tau, rows=labels_of.shape[0], first=0)
    return csr_matrix(weights @ labels_of)


def label_weights(queries: Queries, tau: float) -> csr_matrix:
    """[n, L]: the softmax over the nearest labels alone (Eq. 7 at lambda 0)."""
    instances, labels = queries.memory.labels_of.shape
    return _weights(queries.retrieved.labels, tau, rows=labels, first=instances)


def _weights(nearest: Neighbours, tau: float, *, rows: int, first: int) -> csr_matrix:
    """The softmax over retrieved keys (Eq. 6), [n, rows]; key `first` is column 0."""
    similarities, keys = nearest
    weights = retriever_distributions(similarities=similarities, rows=keys, tau=tau)
    query: Rows = np.repeat(np.arange(len(keys)), keys.shape[1])
    known = keys.ravel() >= 0
    return csr_matrix(
        (weights.ravel()[known], (query[known], keys.ravel()[known] - first)),
        shape=(len(keys), rows),
    )
