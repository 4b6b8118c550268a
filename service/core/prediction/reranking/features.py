"""The features of a query's candidates, which the reranker's trees read.

All features come from one search of the memory. The retrieved keys vote once more, instances and
labels separately, and the query's text is compared with those of the candidates.

Shapes: b retrieved keys of the query, k candidates, L labels of the bundle, d dimensions, F
features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.core.bundle.bundle import Bundle
from service.core.memory.part import WeightedVotes, entries_of
from service.core.memory.view import View
from service.core.prediction.ranking import places, retriever_distribution
from service.core.prediction.reranking.text_overlap import TextComparison, TextOverlap, WordRarity
from service.core.types import Bools, Doubles, Floats, Halves, Indices, Rows

SHARP, SMOOTH = 0.04, 0.1  # temperatures of votes: for the nearest few rows, and for many
NOVEL = -1  # replaces the frequency of a label that was not in the training data

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


class CandidateLabels(Protocol):
    """The interface to the rows of V, and to labels' keys, texts and frequencies by column."""

    def is_instance(self, rows: Rows) -> Bools:
        """Return which of `rows` [m] are instance rows."""
        ...

    def weighted_votes(self, rows: Rows) -> WeightedVotes:
        """Return the labels [v] that `rows` [m] vote for, the count per row, and the weights [v].

        Votes are listed row after row. The weights are None if every vote weighs 1.
        """
        ...

    def keys_of(self, columns: Rows) -> Halves:
        """Return the keys [k, d] of the texts of the labels at `columns` [k]."""
        ...

    def texts_of(self, columns: Rows) -> Sequence[str]:
        """Return the texts [k] of the labels at `columns` [k]."""
        ...

    def frequencies_of(self, columns: Rows) -> Rows:
        """Return the number of rows that vote for each label [k], or 0 for a novel label."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelsOfView:
    """The labels of a view. `trained` [L] are the `trained_frequencies` of its bundle."""

    view: View
    trained: Indices

    def is_instance(self, rows: Rows) -> Bools:
        """Return which of `rows` [m] are instance rows."""
        return self.view.is_instance(rows)

    def weighted_votes(self, rows: Rows) -> WeightedVotes:
        """Return the labels that `rows` [m] vote for, the count per row, and the votes' weights."""
        return self.view.weighted_votes(rows)

    def keys_of(self, columns: Rows) -> Halves:
        """Return the keys [k, d] of the texts of the labels at `columns` [k]."""
        return self.view.label_keys(columns)

    def texts_of(self, columns: Rows) -> Sequence[str]:
        """Return the texts [k] of the labels at `columns` [k]."""
        labels = self.view.labels
        return [labels.text_at(column) for column in columns.tolist()]

    def frequencies_of(self, columns: Rows) -> Rows:
        """Return the number of queries that vote for each label [k]: trained, posted and clicked.

        Novel labels get 0. The trees learned that labels with few rows are seldom clicked, but a
        novel label has few rows only because it is new.
        """
        trained = np.full(len(columns), NOVEL, np.int64)
        of_bundle = columns < len(self.trained)
        trained[of_bundle] = self.trained[columns[of_bundle]]
        frequencies, known = np.maximum(trained, 0), trained != NOVEL
        ownership = self.view.ownership
        if any(map(len, (ownership.label_rows, ownership.queries_by_column, ownership.lost_votes))):
            posted = [self._posted(column) for column in columns[known].tolist()]
            frequencies[known] += np.array(posted, np.int64)  # the array may be empty
        return frequencies

    def _posted(self, column: int) -> int:
        """Return how many rows were posted for a label, minus the bundle's that it has lost."""
        ownership, bundle = self.view.ownership, self.view.bundle
        clicks, rows = len(ownership.queries_for(column)), ownership.label_rows.get(column)
        added = clicks - ownership.lost_votes.get(column, 0)
        if rows is None:
            return added
        added += len(rows) - len(self.view.labels.texts_at(column))
        if column < bundle.labels:
            replaced = bundle.label_details.at(column)
            added -= len(replaced.rows) - len(replaced.aliases)
        return added


def trained_frequencies(bundle: Bundle) -> Indices:
    """Count the instance rows of a bundle that vote for each label [L].

    Posted clicks and aliases are left out.

    `RowOwnership` counts the clicks, including those in a snapshot. A label of a snapshot that was
    not in the training data gets `NOVEL`.
    """
    counts = np.bincount(bundle.indices, minlength=bundle.labels)
    for rows in (bundle.clicks, bundle.aliases):
        entries, _ = entries_of(bundle.indptr, rows)
        counts -= np.bincount(bundle.indices[entries], minlength=bundle.labels)
    frequencies = counts.astype(np.int32)
    frequencies[bundle.label_details.novel_columns()] = NOVEL
    return frequencies


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Candidates:
    """The labels that the memory ranks first for one query, and the keys that voted."""

    query: str
    vector: Floats  # [d], the query's vector as searched
    columns: Rows  # [k]
    scores: Doubles  # [k], descending (Eq. 7)
    rows: Rows  # [b]
    similarities: Floats  # [b], descending

    def first(self, count: int) -> Candidates:
        """Return the best `count` candidates."""
        return replace(self, columns=self.columns[:count], scores=self.scores[:count])


def features_of(
    candidates: Candidates, labels: CandidateLabels, *, rarity: WordRarity, compare: TextComparison
) -> Floats:
    """Return the values of `FEATURES` for each candidate, [k, F]."""
    texts = labels.texts_of(candidates.columns)
    values = {
        **memory_features(candidates, labels),
        **text_features(compare(candidates.query, texts, rarity)),
    }
    return np.stack([values[name] for name in FEATURES], axis=1).astype(np.float32)


def memory_features(candidates: Candidates, labels: CandidateLabels) -> Mapping[str, Doubles]:
    """Return the features that come from the memory, [k] each."""
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
    """Return instance votes at both temperatures and label votes at the smooth one, [k] each.

    The softmax (Eq. 5) is over the retrieved keys of one kind. This is Eq. 7 at lambda 1 or 0.
    """
    is_instance = labels.is_instance(candidates.rows)
    voted, votes_per_key, vote_weights = labels.weighted_votes(candidates.rows)
    place_of_vote = places(voted, among=candidates.columns)

    def votes(of_block: Bools, tau: float) -> Doubles:
        weights = np.zeros(len(candidates.rows))
        weights[of_block] = retriever_distribution(
            similarities=candidates.similarities[of_block], tau=tau
        )
        by_place = sum_votes(  # votes for labels that are not candidates are group 0
            weights=weights,
            votes_per_key=votes_per_key,
            vote_weights=vote_weights,
            group_of_vote=place_of_vote + 1,
            groups=len(candidates.columns) + 1,
        )
        return np.maximum(by_place[1:], 0.0)  # negative pairs: the trees have seen no such sum

    return votes(is_instance, SHARP), votes(is_instance, SMOOTH), votes(~is_instance, SMOOTH)


def sum_votes(
    *,
    weights: Doubles,
    votes_per_key: NDArray[np.int64],
    group_of_vote: NDArray[np.integer],
    groups: int,
    vote_weights: Floats,
) -> Doubles:
    """Sum the votes of each group, [groups].

    A vote weighs as much as its key, times its entry in `vote_weights` [v].
    `group_of_vote` [v] is the group of each vote. Equal input gives equal bits.
    """
    votes = np.repeat(weights, votes_per_key) * vote_weights  # [v]
    return np.bincount(group_of_vote, weights=votes, minlength=groups).astype(np.float64)


def text_features(overlap: TextOverlap) -> Mapping[str, Doubles]:
    """Return the features that compare texts, [k] each."""
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
    """Return values [k], all at least 0, divided by the greatest."""
    shares: Doubles = values / max(values.max(initial=0.0), 1e-12)
    return shares
