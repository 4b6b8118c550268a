"""What the trees of the second ranking read of each candidate of one query.

All of it comes from one search of the memory: the keys that it retrieved vote once more, instances
and labels apart, and the texts of query and candidates are compared.

Shapes: b retrieved keys of the query, k candidates, d dimensions, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from service.core.prediction.places import places
from service.core.prediction.reranking.candidate_labels import CandidateLabels
from service.core.prediction.reranking.text_overlap import Compare, TextOverlap, WordRarity
from service.core.prediction.scoring import retriever_distribution, sum_votes
from service.core.types import Bools, Doubles, Floats, Rows

SHARP, SMOOTH = 0.04, 0.1  # temperatures of instance votes: the nearest few rows, and many

FEATURES: tuple[str, ...] = (
    "score",
    "score, share of best",
    "rank",
    "similarity",
    "similarity below best",
    "label frequency",
    "sharp instance votes",
    "sharp instance votes, share of best",
    "smooth instance votes",
    "smooth instance votes, share of best",
    "label weight",
    "label weight, share of best",
    "trigrams, Jaccard",
    "trigrams of the label in the query",
    "trigrams of the query in the label",
    "trigrams of the label",
    "trigrams of the query",
    "words, rarity",
    "words of the label in the query",
    "words of the query in the label",
    "common beginning",
    "common beginning, share of the query's first word",
    "common beginning, share of the label's first word",
)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Candidates:
    """The labels that the memory ranks first for one query, and the keys that voted."""

    query: str
    vector: Floats  # [d], the one that was searched
    columns: Rows  # [k]
    scores: Doubles  # [k], descending (Eq. 7)
    rows: Rows  # [b]
    similarities: Floats  # [b], descending

    def first(self, count: int) -> Candidates:
        """The best `count` of them."""
        return replace(self, columns=self.columns[:count], scores=self.scores[:count])


def features_of(
    candidates: Candidates, labels: CandidateLabels, *, rarity: WordRarity, compare: Compare
) -> Floats:
    """The values of `FEATURES` for each candidate, [k, F]."""
    texts = labels.texts_of(candidates.columns)
    values = {
        **memory_features(candidates, labels),
        **text_features(compare(candidates.query, texts, rarity)),
    }
    return np.stack([values[name] for name in FEATURES], axis=1).astype(np.float32)


def memory_features(candidates: Candidates, labels: CandidateLabels) -> Mapping[str, Doubles]:
    """What the memory says of each candidate, [k] each."""
    scores, columns = candidates.scores, candidates.columns
    keys = labels.keys_of(columns).astype(np.float32)
    similarity = np.einsum("kd,d->k", keys, candidates.vector, dtype=np.float64)
    sharp, smooth, weight = separate_votes(candidates, labels)
    return {
        "score": scores,
        "score, share of best": _share_of_best(scores),
        "rank": np.arange(len(columns), dtype=np.float64),
        "similarity": similarity,
        "similarity below best": similarity - similarity.max(initial=-np.inf),
        "label frequency": np.log1p(labels.frequencies_of(columns)),
        "sharp instance votes": sharp,
        "sharp instance votes, share of best": _share_of_best(sharp),
        "smooth instance votes": smooth,
        "smooth instance votes, share of best": _share_of_best(smooth),
        "label weight": weight,
        "label weight, share of best": _share_of_best(weight),
    }


def separate_votes(
    candidates: Candidates, labels: CandidateLabels
) -> tuple[Doubles, Doubles, Doubles]:
    """Votes of instances at both temperatures and of labels at the smooth one, [k] each.

    The softmax (Eq. 5) is over the retrieved keys of one block: Eq. 7 at lambda 1 and at lambda 0.
    """
    is_instance = labels.is_instance(candidates.rows)
    voted, votes_per_key, vote_weights = labels.weighted_votes(candidates.rows)
    place_of_vote = places(voted, among=candidates.columns)

    def votes(of_block: Bools, tau: float) -> Doubles:
        weights = np.zeros(len(candidates.rows))
        weights[of_block] = retriever_distribution(
            similarities=candidates.similarities[of_block], tau=tau
        )
        by_place = sum_votes(  # votes for labels that are no candidates come first
            weights=weights,
            votes_per_key=votes_per_key,
            vote_weights=vote_weights,
            group_of_vote=place_of_vote + 1,
            groups=len(candidates.columns) + 1,
        )
        return by_place[1:]

    return votes(is_instance, SHARP), votes(is_instance, SMOOTH), votes(~is_instance, SMOOTH)


def text_features(overlap: TextOverlap) -> Mapping[str, Doubles]:
    """What the texts have in common, [k] each."""
    common, of_query, of_label = overlap[:3]
    words = overlap.common_words
    return {
        "trigrams, Jaccard": common / np.maximum(of_query + of_label - common, 1.0),
        "trigrams of the label in the query": common / np.maximum(of_label, 1.0),
        "trigrams of the query in the label": common / np.maximum(of_query, 1.0),
        "trigrams of the label": of_label,
        "trigrams of the query": of_query,
        "words, rarity": words,
        "words of the label in the query": words / np.maximum(overlap.label_words, 1e-9),
        "words of the query in the label": words / np.maximum(overlap.query_words, 1e-9),
        "common beginning": overlap.common_beginning,
        "common beginning, share of the query's first word": overlap.common_beginning
        / np.maximum(overlap.query_first_word, 1.0),
        "common beginning, share of the label's first word": overlap.common_beginning
        / np.maximum(overlap.label_first_word, 1.0),
    }


def _share_of_best(values: Doubles) -> Doubles:
    """Values [k] of at least 0 as shares of the greatest."""
    shares: Doubles = values / max(values.max(initial=0.0), 1e-12)
    return shares
