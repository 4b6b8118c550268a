"""Novel labels in IRENE's four settings: zero- or one-shot, ranked among novel or all labels.

| method           | what represents u                                                            |
|------------------|------------------------------------------------------------------------------|
| `text`           | its text, E(z_u)                                                             |
| `irene`          | C(u), Algorithm 1                                                            |
| `ncm`            | the mean of its known queries; seen labels use their training queries        |
| `rae-instances`  | an instance row of its query, without a label key                            |
| `text+instance`  | E(z_u) and that instance row                                                 |
| `irene+instance` | C(u) and that instance row, as in the service                                |
| `text+memory`    | E(z_u) with the training instances, zero-shot                                |
| `irene+memory`   | C(u) with the training instances, as in the service without a query          |
| `reranked`       | the service's answer with the bundle's reranker                              |

u is a novel label. `text`, `irene`, `ncm` and ablations (C(u) by another combiner, each under its
name) rank by label keys alone, the other methods by the memory's votes. Search is exact. Among all
labels, `novel_R@k` is the recall of novel labels alone; a row's seen labels do not count.

Shapes: q test rows, N instances, S seen and U novel labels, L = S + U, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Literal

import numpy as np
from scipy.sparse import csr_matrix, hstack, vstack

from service.core.bundle.manifest import PredictorFacts
from service.core.prediction.predictor import voting_kind
from service.core.types import Doubles, Floats, Rows
from training.evaluation.evaluation import Evaluation
from training.evaluation.metrics import evaluate, labels_to_rank, ranking_outcome, recall
from training.evaluation.prediction import OfflineMemory, predict
from training.evaluation.results import RERANKED
from training.lab.novel_split import NovelSplit
from training.models.class_means import class_means

Setting = Literal["zero-shot", "one-shot"]
Candidates = Literal["novel", "all"]


SETTINGS: tuple[Setting, ...] = ("zero-shot", "one-shot")
TEXT, IRENE = "text", "irene"
METHODS = (
    TEXT,
    IRENE,
    "ncm",
    "rae-instances",
    f"{TEXT}+instance",
    f"{IRENE}+instance",
    f"{TEXT}+memory",
    f"{IRENE}+memory",
    RERANKED,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelVectors:
    """The vectors of a split; `combined` holds C(u) by each combiner, under the method's name."""

    instances: Floats  # [N, d]
    clicks: csr_matrix  # [N, S], the labels that each instance votes for
    seen: Floats  # [S, d], keys of the seen labels
    texts: Floats  # [U, d], E(z_u)
    revealed: Floats  # [U, d], E(x_u)
    queries: Floats  # [q, d]
    instance_texts: Sequence[str] = ()  # [N], for words
    combined: Mapping[str, Mapping[Setting, Floats]] = field(default_factory=dict)  # [U, d] each


@dataclass(frozen=True, kw_only=True)
class NovelRow:
    """Metrics in percent of one method in one setting."""

    setting: Setting
    candidates: Candidates
    method: str
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """The memory of a method: instance keys X [m, d] with labels Y [m, L], label keys Z [L, d].

    `memorization` is lambda, `depth` is b. Without a depth, at least as many keys are retrieved as
    labels are ranked. With `texts` [m], rows are found by words as served; the last of them, and
    the novel labels, are `posted`.
    """

    name: str
    instances: Floats
    labels_of: csr_matrix
    labels: Floats
    memorization: float
    depth: int | None = None
    texts: Sequence[str] = ()
    posted: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelEvaluation:
    """Measures every method on a split's vectors.

    `reranked` holds, by setting, the memory to which the novel labels were posted. It is empty for
    a bundle without a reranker.
    """

    split: NovelSplit
    vectors: NovelVectors
    predictor: PredictorFacts
    reranked: Mapping[Setting, Evaluation] = field(default_factory=dict)

    def rows(self) -> Iterator[NovelRow]:
        """Yield the metrics of every method in every setting."""
        candidates: tuple[Candidates, ...] = ("novel", "all")
        for setting, among in product(SETTINGS, candidates):
            for method, metrics in self._measured(setting, among):
                yield NovelRow(setting=setting, candidates=among, method=method, metrics=metrics)

    def _measured(
        self, setting: Setting, among: Candidates
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield each method's name and metrics."""
        columns = self.split.novel if among == "novel" else np.arange(self._labels)
        for method in self._methods(setting, among):
            yield method.name, self._measure(method, columns)
        if among == "all" and setting in self.reranked:
            yield RERANKED, self._measure_reranked(self.reranked[setting])

    def _methods(self, setting: Setting, among: Candidates) -> Iterator[Method]:
        vectors = self.vectors
        combined = {name: by_setting[setting] for name, by_setting in vectors.combined.items()}
        novel = {TEXT: vectors.texts, **combined}
        for name, keys in novel.items():
            yield self._ranking(name, np.concatenate([vectors.seen, keys]))
        served = {name: keys for name, keys in novel.items() if name in (TEXT, IRENE)}
        if setting == "one-shot":
            means = np.concatenate([self._means, vectors.revealed])
            yield self._ranking("ncm", means)
            no_keys = np.zeros_like(vectors.texts)
            yield self._voting("rae-instances", no_keys, among, revealed=True)
            for name, keys in served.items():
                yield self._voting(f"{name}+instance", keys, among, revealed=True)
        elif among == "all":
            for name, keys in served.items():
                yield self._voting(f"{name}+memory", keys, among, revealed=False)

    def _ranking(self, name: str, labels: Floats) -> Method:
        """A method that ranks by label keys alone."""
        nothing = np.zeros((0, labels.shape[1]), np.float32)
        votes = csr_matrix((0, self._labels), dtype=np.float32)
        return Method(
            name=name, instances=nothing, labels_of=votes, labels=labels, memorization=0.0
        )

    def _voting(self, name: str, novel: Floats, among: Candidates, *, revealed: bool) -> Method:
        """A method that ranks by votes; training instances vote only if all labels are ranked."""
        vectors, one_shot = self.vectors, self.split.everything.train.labels_of
        rows = [(vectors.instances, self._clicks)] if among == "all" else []
        rows += [(self._revealed, csr_matrix(one_shot, dtype=np.float32))] if revealed else []
        texts = [*self.vectors.instance_texts, *(self._revealed_texts if revealed else ())]
        only_revealed = among == "novel" and not novel.any()  # revealed queries are the only keys
        return Method(
            name=name,
            instances=np.concatenate([instances for instances, _ in rows]),
            labels_of=csr_matrix(vstack([labels_of for _, labels_of in rows])),
            labels=np.concatenate([vectors.seen, novel]),
            memorization=1.0 if only_revealed else self.predictor.memorization,
            depth=self.predictor.depth if among == "all" else None,
            texts=texts if among == "all" and novel.any() else (),
            posted=len(self._revealed_texts) if revealed else 0,
        )

    def _measure(self, method: Method, columns: Rows) -> dict[str, float]:
        """Metrics over the test rows with one of the labels `columns`; only these are ranked."""
        test = self.split.everything.test
        filtered = csr_matrix(test.filtered[:, columns])
        rows = self._rows_with_one_of(columns)
        memory = OfflineMemory.of(
            method.instances,
            method.labels[columns],
            labels_of=csr_matrix(method.labels_of[:, columns]),
            texts=self.split.everything.labels.select(columns),
        )
        top_k, queries = labels_to_rank(filtered[rows]), self.vectors.queries[rows]
        retrieved = memory.search(
            queries,
            kind=voting_kind(method.memorization),
            count=method.depth or max(top_k, self.predictor.depth),
        )
        if method.texts and self.predictor.words is not None:
            instances, novel = len(method.instances), columns >= self.split.facts.seen
            posted = np.arange(instances - method.posted, instances)
            memory = replace(
                memory,
                instance_texts=method.texts,
                posted=np.concatenate([posted, instances + np.flatnonzero(novel)]),
            )
            texts = [test.instances.texts[row] for row in rows.tolist()]
            retrieved = memory.with_words(
                retrieved,
                queries,
                memory.matches(texts),
                memorization=method.memorization,
                words=self.predictor.words,
            )
        if method.depth is not None:
            retrieved = memory.without_hubs(retrieved, share=self.predictor.hubs)
        ranked = predict(
            memory.values,
            retrieved,
            tau=self.predictor.tau,
            memorization=method.memorization,
            top_k=top_k,
            order=memory.label_order,
        ).labels
        return self._metrics(ranked, rows, columns)

    def _measure_reranked(self, evaluation: Evaluation) -> dict[str, float]:
        """Metrics of the reranker among all labels."""
        memorization, columns = self.predictor.memorization, np.arange(self._labels)
        retrieved = evaluation.retrieve(voting_kind(memorization))
        ranked = evaluation.ranked(retrieved, memorization).labels
        rows = self._rows_with_one_of(columns)
        return self._metrics(ranked[rows], rows, columns)

    def _rows_with_one_of(self, columns: Rows) -> Rows:
        """The test rows that have one of the labels `columns`, [q]."""
        labels_of = csr_matrix(self.split.everything.test.labels_of[:, columns] != 0)
        return np.flatnonzero(np.diff(labels_of.indptr))

    def _metrics(self, ranked: Rows, rows: Rows, columns: Rows) -> dict[str, float]:
        """Metrics of the test rows `rows` [q]; `ranked` holds positions in `columns`."""
        test = self.split.everything.test
        positives = csr_matrix(test.labels_of[rows][:, columns] != 0)
        filtered = csr_matrix(test.filtered[rows][:, columns])
        metrics = evaluate(
            ranked,
            positives,
            inverse_propensities=self._inverse_propensities[columns],
            filtered=filtered,
        )
        if len(columns) > self.split.facts.novel:
            metrics |= novel_recalls(ranked, positives, filtered, seen=self.split.facts.seen)
        return metrics

    @property
    def _labels(self) -> int:
        return len(self.split.everything.labels)

    @cached_property
    def _clicks(self) -> csr_matrix:
        """Y, the labels of the training instances, [N, L]."""
        seen = self.vectors.clicks
        novel = csr_matrix((seen.shape[0], self.split.facts.novel), dtype=np.float32)
        return csr_matrix(hstack([csr_matrix(seen != 0, dtype=np.float32), novel]))

    @property
    def _revealed_texts(self) -> Sequence[str]:
        """The revealed queries, ordered like the one-shot rows, [U]."""
        return self.split.everything.train.instances.texts

    @cached_property
    def _revealed(self) -> Floats:
        """E(x_u), ordered like the one-shot rows, [U, d]."""
        columns = self.split.everything.train.labels_of.indices - self.split.facts.seen
        revealed: Floats = self.vectors.revealed[columns]
        return revealed

    @cached_property
    def _means(self) -> Floats:
        """The mean of each seen label's training queries, [S, d]; its key if it has no query."""
        vectors = self.vectors
        return class_means(vectors.clicks, vectors.instances, vectors.seen, text_weight=0.0)

    @cached_property
    def _inverse_propensities(self) -> Doubles:
        """Inverse propensities of all labels, [L]; a novel label has no clicks yet."""
        return self.split.everything.inverse_propensities(self._clicks)


TOPS = (5, 30, 100)  # k of `novel_R@k`


def novel_recalls(
    ranked: Rows, positives: csr_matrix, filtered: csr_matrix, *, seen: int
) -> dict[str, float]:
    """`novel_R@k` in percent for `ranked` [q, K], over the rows that have a novel label.

    `positives` and `filtered` are bool [q, L]. The first `seen` labels are not novel and do not
    count.
    """
    novel = csr_matrix(positives, copy=True)
    novel.data[novel.indices < seen] = False
    outcome = ranking_outcome(ranked, novel, filtered=filtered)
    if not len(outcome.sizes):
        return {f"novel_R@{k}": np.nan for k in TOPS}
    return {f"novel_R@{k}": 100.0 * recall(outcome, k=k) for k in TOPS}
