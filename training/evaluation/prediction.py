"""Prediction for all rows of a data set, with the scoring and ranking code of the service.

For the same retrieved keys, `predict` returns the service's answers, equal to the last bit of a
score. Only the retrieval differs offline: vectors lie in arrays, and every key is scanned.

Shapes: n queries, N instances, L labels, b retrieved keys, k ranked labels, d dimensions, C columns
of a view (at least L).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, identity, vstack

from service.core.files.arrays import constant, is_constant
from service.core.index.exact import exact_search
from service.core.index.found_rows import nearest, nearest_sharing, places_per_key, search_sharing
from service.core.index.hubs import hubness, penalties, without_hubs
from service.core.index.protocol import RowFilter, Tombstones, batches
from service.core.lexical.hybrid import cosines_by, with_matches
from service.core.lexical.lexicon import Lexicon, Matches, WordPart
from service.core.lexical.word_index import index_texts
from service.core.memory.part import WeightedVotes, entries_of
from service.core.memory.view import View
from service.core.prediction.predictor import voting_kind
from service.core.prediction.ranking import Ranker, Values, retriever_distribution
from service.core.prediction.reranking.features import CandidateLabels, Candidates
from service.core.prediction.reranking.reranker import Reranker
from service.core.types import Bools, Doubles, Floats, Halves, RowKind, Rows
from training.checkpoints.choices import Choices
from training.datasets.dataset import Dataset, Texts
from training.datasets.pair_weights import vote_weights
from training.datasets.propensity import label_frequency

Ranked = NDArray[np.int64]  # [n, k] columns of V, the best first, then -1
Neighbours = tuple[Floats, Rows]  # similarities and rows of the nearest keys, [n, b] each

_SEARCHED_TOGETHER = 4_096  # queries that faiss multiplies with the keys at a time
_RANKED_TOGETHER = 256  # queries of one call of the ranker


def order_by_id(ids: Sequence[str]) -> Rows:
    """Return the place of each label [L] among all labels sorted by id: the order of ties."""
    places = np.empty(len(ids), np.int64)
    places[np.argsort(np.array(ids, object), kind="stable")] = np.arange(len(ids))
    return places


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedLabels:
    """The best labels of each query, descending by score; ties are ordered by label id.

    `labels` [n, k] are columns of V, with `scores` [n, k]. If a query has fewer than k candidates,
    the remaining places hold label -1 and score 0.
    """

    labels: Rows
    scores: Doubles

    @classmethod
    def none(cls, queries: int, top_k: int) -> RankedLabels:
        """Return places [n, k] for labels, without any."""
        shape = (queries, top_k)
        return cls(labels=np.full(shape, -1, np.int64), scores=np.zeros(shape))


@dataclass(frozen=True, kw_only=True, eq=False)
class OfflineMemory:
    """The keys K = [X; Z] (Eq. 3) in fp16, as served, and the labels of X; needs no bundle.

    With texts, it implements a reranker's `CandidateLabels`.
    """

    keys: Halves  # [N + L, d]
    labels_of: csr_matrix  # [N, L]
    label_ids: Sequence[str]  # [L]
    label_texts: Sequence[str] = ()  # [L], for a reranker and for words
    instance_texts: Sequence[str] = ()  # [N], for words
    posted: Rows = field(default_factory=lambda: np.zeros(0, np.int64))  # rows, for words

    @classmethod
    def of(
        cls,
        instances: Floats | Halves,
        labels: Floats | Halves,
        *,
        labels_of: csr_matrix,
        texts: Texts,
        instance_texts: Sequence[str] = (),
    ) -> OfflineMemory:
        """Return the memory of vectors of instances [N, d] and of labels [L, d] with `texts`."""
        return cls(
            keys=np.concatenate([instances, labels], dtype=np.float16),
            labels_of=labels_of,
            label_ids=texts.uids,
            label_texts=texts.texts,
            instance_texts=instance_texts,
        )

    @classmethod
    def of_training(cls, dataset: Dataset, instances: Floats, labels: Floats) -> OfflineMemory:
        """Return the memory of a data set's training rows [N, d] and labels [L, d]."""
        return cls.of(
            instances,
            labels,
            labels_of=dataset.train.labels_of,
            texts=dataset.labels,
            instance_texts=dataset.train.instances.texts,
        )

    @cached_property
    def lexicon(self) -> Lexicon:
        """The words of all rows' texts."""
        size = len(self.keys)
        words = index_texts(chain(self.instance_texts, self.label_texts))
        dead = Tombstones(size=size)
        return Lexicon(parts=(WordPart(index=words, rows=size, dead=dead, posted=self.posted),))

    def matches(self, texts: Sequence[str]) -> list[Matches]:
        """Return the rows that share words with each of `texts` [n]."""
        return [self.lexicon.matches(text, share=1.0) for text in texts]

    def with_words(
        self,
        found: Neighbours,
        queries: Floats,
        matches: Sequence[Matches],
        *,
        memorization: float,
        words: float,
    ) -> Neighbours:
        """Return the keys that `queries` [n, d] found, joined by their `matches` as served."""
        kind = voting_kind(memorization)
        return with_matches(
            *found,
            matches=[one.adding(words).of_kind(kind, self.is_instance) for one in matches],
            cosines=cosines_by(lambda rows: self.keys[rows], queries),
        )

    def without_hubs(self, found: Neighbours, *, share: float) -> Neighbours:
        """Return the keys that queries found, hubs later than before, as served."""
        similarities, rows = found
        if not share:
            return found
        subtracted = penalties(self._hubness, share=share)[np.maximum(rows, 0)]
        return without_hubs(similarities, rows, subtracted)

    @cached_property
    def _hubness(self) -> Floats:
        """The hubness of each row; 0 for posted ones, which a bundle's hubness leaves out."""
        trained = np.setdiff1d(np.arange(len(self.keys)), self.posted)
        instances = int(np.searchsorted(trained, self.instances))
        found = np.zeros(len(self.keys), np.float32)
        found[trained] = hubness(self.keys[trained], instances=instances)
        return found

    @property
    def instances(self) -> int:
        """N, the number of instances."""
        return int(self.labels_of.shape[0])

    @cached_property
    def label_order(self) -> Rows:
        """The labels' places by id, [L]."""
        return order_by_id(self.label_ids)

    @cached_property
    def values(self) -> Values:
        """The values V = [Y; I], for the ranker."""
        of_labels, weights = self._votes, self._vote_weights
        return Values(
            indptr=of_labels.indptr,
            indices=of_labels.indices,
            weights=None if is_constant(weights) else weights[: of_labels.nnz],
            labels=of_labels.shape[1],
        )

    @cached_property
    def _values(self) -> csr_matrix:
        """The values V = [Y; I], [N + L, L]."""
        one_label_each = identity(self.labels_of.shape[1], dtype=bool, format="csr")
        return csr_matrix(vstack([self._votes, one_label_each], format="csr"))

    @cached_property
    def _votes(self) -> csr_matrix:
        """Y with all votes 1, [N, L]."""
        return csr_matrix(self.labels_of != 0)

    @cached_property
    def _vote_weights(self) -> Floats:
        """The weights of the entries of [Y; I]."""
        labels_of = self.labels_of.copy()
        labels_of.sum_duplicates()  # this also sorts the entries like those of `_values`
        labels_of.eliminate_zeros()
        weights = vote_weights(labels_of)
        if weights is None:
            return constant(np.float32(1), self._values.nnz)
        return np.concatenate([weights, np.ones(self.labels_of.shape[1], np.float32)])

    def ranked(self, retrieved: Neighbours, choices: Choices, *, top_k: int) -> RankedLabels:
        """Return the `top_k` labels of each query by Eq. 7, from the keys that it retrieved."""
        return predict(
            self.values,
            retrieved,
            tau=choices.tau,
            memorization=choices.memorization,
            top_k=top_k,
            order=self.label_order,
        )

    def is_instance(self, rows: Rows) -> Bools:
        """Whether each of `rows` [m] is an instance row."""
        return np.asarray(rows < self.instances)

    def weighted_votes(self, rows: Rows) -> WeightedVotes:
        """The labels that `rows` [m] vote for, how many each row has, and the votes' weights."""
        entries, counts = entries_of(self._values.indptr, rows)
        columns = np.asarray(self._values.indices[entries], np.int32)
        return columns, counts, self._vote_weights[entries]

    def keys_of(self, columns: Rows) -> Halves:
        """The keys of the labels `columns`, [k, d]."""
        return self.keys[self.instances + columns]

    def texts_of(self, columns: Rows) -> Sequence[str]:
        """The texts of the labels `columns`, [k]."""
        return [self.label_texts[column] for column in columns.tolist()]

    def frequencies_of(self, columns: Rows) -> Rows:
        """How many instances vote for each of the labels `columns`, [k]."""
        return self._frequencies[columns]

    @cached_property
    def _frequencies(self) -> Rows:
        return label_frequency(self.labels_of != 0)

    def search(self, queries: Floats, *, kind: RowKind | None, count: int) -> Neighbours:
        """Scan all keys of a kind (None: both) for queries [n, d], sharing places as served."""
        rows = RowFilter(
            start=self.instances if kind is RowKind.LABEL else 0,
            stop=self.instances if kind is RowKind.INSTANCE else len(self.keys),
        )
        return search_sharing(
            partial(exact_search, self.keys, row_filter=rows),
            queries,
            count=count,
            most=len(self.keys),
            share=places_per_key(count),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RetrievedKeys:
    """The b nearest keys of each query: among all of K, and within each block of it.

    With the `texts` of the queries, rows are found by words, too.
    """

    memory: OfflineMemory
    queries: Floats  # [n, d]
    texts: Sequence[str] | None  # [n]
    both: Neighbours
    instances: Neighbours
    labels: Neighbours

    def of_choices(self, choices: Choices) -> Neighbours:
        """Return the keys that can vote at the chosen lambda, b and weight of words."""
        found = self.voting(choices.memorization, choices.depth)
        if choices.words is not None and self.texts is not None:
            memorization, words = choices.memorization, choices.words
            found = self.memory.with_words(
                found, self.queries, self._matches, memorization=memorization, words=words
            )
        return self.memory.without_hubs(found, share=choices.hubs)

    @cached_property
    def _matches(self) -> list[Matches]:
        return self.memory.matches(self.texts or ())

    def voting(self, memorization: float, depth: int) -> Neighbours:
        """The nearest `depth` keys that can vote at a lambda (Eq. 8)."""
        kinds = {None: self.both, RowKind.INSTANCE: self.instances, RowKind.LABEL: self.labels}
        similarities, rows = kinds[voting_kind(memorization)]
        return nearest_sharing(similarities, rows, count=depth, share=places_per_key(depth))


def nearest_of_both(instances: Neighbours, labels: Neighbours, *, depth: int) -> Neighbours:
    """The nearest keys in all of K, merged from the nearest keys of each block."""
    similarities = np.hstack([instances[0], labels[0]])
    rows = np.hstack([instances[1], labels[1]])
    return nearest(similarities, rows, count=depth)


def retrieve(
    memory: OfflineMemory,
    queries: Floats,
    *,
    depth: int,
    texts: Sequence[str] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> RetrievedKeys:
    """Scan all keys once for queries [n, d]; `progress` receives the number of finished queries.

    `texts` [n] are the queries' own.
    """
    shape = (len(queries), depth)
    blocks = {
        kind: (np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64))
        for kind in (RowKind.INSTANCE, RowKind.LABEL, None)
    }
    for chunk in batches(len(queries), _SEARCHED_TOGETHER):
        instances = memory.search(queries[chunk], kind=RowKind.INSTANCE, count=depth)
        labels = memory.search(queries[chunk], kind=RowKind.LABEL, count=depth)
        both = nearest_of_both(instances, labels, depth=depth)
        for kind, found in ((RowKind.INSTANCE, instances), (RowKind.LABEL, labels), (None, both)):
            similarities, rows = blocks[kind]
            similarities[chunk], rows[chunk] = found
        progress(chunk.stop)
    return RetrievedKeys(
        memory=memory,
        queries=queries,
        texts=texts,
        both=blocks[None],
        instances=blocks[RowKind.INSTANCE],
        labels=blocks[RowKind.LABEL],
    )


def predict(
    memory: View | Values,
    *blocks: Neighbours,
    tau: float,
    memorization: float,
    top_k: int,
    order: Rows,
) -> RankedLabels:
    """Return the best labels of each query, ranked in several threads; `order` [C] is of ties.

    The keys of each block get a softmax of their own. One block of retrieved keys is Eq. 7. One of
    instances and one of labels are Eq. 11, the "OvA+kNN prediction", which is not served.
    """
    ranker = Ranker(keep_lock=False)
    rows = np.hstack([rows for _, rows in blocks])
    ranked = RankedLabels.none(len(rows), top_k)

    def rank(chunk: slice) -> None:
        retrieved = rows[chunk] >= 0
        softmax = np.hstack([_softmax(one[chunk], keys[chunk], tau) for one, keys in blocks])
        found = ranker.best(
            memory,
            rows=rows[chunk][retrieved],
            softmax=softmax[retrieved],
            b=np.count_nonzero(retrieved, axis=1).tolist(),
            memorization=memorization,
            top_k=top_k,
        )
        counts = np.array(found.counts)
        query, place = np.nonzero(np.arange(found.room) < counts[:, None])
        columns = np.array(found.columns)[query * found.room + place]
        scores = np.array(found.scores)[query * found.room + place]
        best = np.lexsort((order[columns], -scores, query))[place < top_k]
        query, place = query[place < top_k] + chunk.start, place[place < top_k]
        ranked.labels[query, place], ranked.scores[query, place] = columns[best], scores[best]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(rank, batches(len(rows), _RANKED_TOGETHER)):
            pass
    return ranked


def _softmax(similarities: Floats, rows: Rows, tau: float) -> Doubles:
    """Return the softmax over each query's retrieved keys (Eq. 5), [n, b].

    If fewer than b keys were retrieved, `rows` [n, b] end with -1. These places weigh 0.
    """
    weights = np.zeros(rows.shape)
    counts = np.count_nonzero(rows >= 0, axis=1)  # [n]
    # Subtle: numpy adds in pairs, so trailing zeros would change the last bits of a sum. So only
    # queries with equal numbers of keys are summed together.
    for count in np.unique(counts).tolist():
        queries = np.flatnonzero(counts == count)
        weights[queries, :count] = retriever_distribution(
            similarities=similarities[queries, :count], tau=tau
        )
    return weights


def candidates_of(
    queries: Sequence[str], vectors: Floats, retrieved: Neighbours, ranked: RankedLabels
) -> list[Candidates]:
    """Return each query's candidates, given its ranked labels, vector [n, d] and keys [n, b]."""
    similarities, rows = retrieved
    keys = np.count_nonzero(rows >= 0, axis=1).tolist()  # missing rows (-1) are at the end
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
    order: Rows,
) -> RankedLabels:
    """Return each query's `top_k` best labels by the reranker; ties are ordered by label id."""
    again = RankedLabels.none(len(candidates), top_k)
    for query, of_query in enumerate(candidates):
        scores = reranker.scores(of_query, labels)
        best = np.lexsort((order[of_query.columns], -scores))[:top_k]
        again.labels[query, : len(best)] = of_query.columns[best]
        again.scores[query, : len(best)] = scores[best]
    return again
