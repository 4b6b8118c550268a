"""Novel labels in IRENE's four settings: zero- or one-shot, found among novel labels or among all.

| method           | a novel label is                                                             |
|------------------|------------------------------------------------------------------------------|
| `text`           | its text, E(z_u)                                                             |
| `irene`          | C(u), Algorithm 1                                                            |
| `ncm`            | the mean of its known queries, as a seen label is of its training queries    |
| `rae-instances`  | an instance row of its query, and no key of its own                          |
| `text+instance`  | E(z_u) and that row                                                          |
| `irene+instance` | C(u) and that row, as it is served                                           |
| `text+memory`    | E(z_u), beside the instances of training, zero-shot                          |
| `irene+memory`   | C(u), beside them, as it is served without a query                           |

`text`, `irene`, `ncm` and ablations (C(u) by another combiner, under a name of its own) rank by
label keys alone, the others by the memory's votes. Every key is scanned.

Shapes: q test rows, N instances, S seen and U novel labels, L = S + U, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Literal

import numpy as np
from scipy.sparse import csr_matrix, hstack, vstack

from service.core.bundle.manifest import PredictorFacts
from service.core.prediction.predictor import voting_kind
from service.core.types import Floats, Rows
from training.datasets.novel_split import NovelSplit
from training.datasets.propensity import inverse_propensity
from training.evaluation.metrics import evaluate, labels_to_rank
from training.evaluation.prediction import OfflineMemory, predict
from training.models.class_means import class_means

Setting = Literal["zero-shot", "one-shot"]
Candidates = Literal["novel", "all"]


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
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Combined:
    """C(u) of novel labels, [U, d] each."""

    zero_shot: Floats
    one_shot: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelVectors:
    """A split as unit vectors; `combined` has C(u) by the names of what makes it."""

    instances: Floats  # [N, d]
    clicks: csr_matrix  # [N, S], the labels that they vote for
    seen: Floats  # [S, d], the seen labels' keys
    texts: Floats  # [U, d], E(z_u)
    revealed: Floats  # [U, d], E(x_u)
    queries: Floats  # [q, d]
    combined: Mapping[str, Combined] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NovelRow:
    """The metrics, in percent, of one method in one setting."""

    setting: Setting
    candidates: Candidates
    method: str
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """What stands for labels: X [m, d] with Y [m, L], and Z [L, d].

    `memorization` is lambda, `depth` b; None: as many keys as labels are ranked, or more.
    """

    name: str
    instances: Floats
    labels_of: csr_matrix
    labels: Floats
    memorization: float
    depth: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelEvaluation:
    """A split and its vectors, ready to be measured."""

    split: NovelSplit
    vectors: NovelVectors
    predictor: PredictorFacts

    def rows(self) -> Iterator[NovelRow]:
        """Every method in every setting."""
        settings: tuple[Setting, ...] = ("zero-shot", "one-shot")
        candidates: tuple[Candidates, ...] = ("novel", "all")
        for setting, among in product(settings, candidates):
            columns = self.split.novel if among == "novel" else np.arange(self._labels)
            for method in self._methods(setting, among):
                metrics = self._measured(method, columns)
                yield NovelRow(
                    setting=setting, candidates=among, method=method.name, metrics=metrics
                )

    def _methods(self, setting: Setting, among: Candidates) -> Iterator[Method]:
        vectors = self.vectors
        novel = {TEXT: vectors.texts} | {
            name: combined.one_shot if setting == "one-shot" else combined.zero_shot
            for name, combined in vectors.combined.items()
        }
        for name, keys in novel.items():
            yield self._ranking(name, np.concatenate([vectors.seen, keys]))
        served = {name: keys for name, keys in novel.items() if name in (TEXT, IRENE)}
        if setting == "one-shot":
            means = np.concatenate([self._means, vectors.revealed])
            yield self._ranking("ncm", means)
            none = np.zeros_like(vectors.texts)
            yield self._voting("rae-instances", none, among, revealed=True)
            for name, keys in served.items():
                yield self._voting(f"{name}+instance", keys, among, revealed=True)
        elif among == "all":
            for name, keys in served.items():
                yield self._voting(f"{name}+memory", keys, among, revealed=False)

    def _ranking(self, name: str, labels: Floats) -> Method:
        """By label keys alone."""
        return Method(
            name=name,
            instances=np.zeros((0, labels.shape[1]), np.float32),
            labels_of=csr_matrix((0, self._labels), dtype=np.float32),
            labels=labels,
            memorization=0.0,
        )

    def _voting(self, name: str, novel: Floats, among: Candidates, *, revealed: bool) -> Method:
        """By the memory: the instances of training, unless only novel labels are asked for."""
        vectors, one_shot = self.vectors, self.split.everything.train.labels_of
        rows = [(vectors.instances, self._clicks)] if among == "all" else []
        rows += [(self._revealed, csr_matrix(one_shot, dtype=np.float32))] if revealed else []
        alone = among == "novel" and not novel.any()  # no key but the revealed queries
        return Method(
            name=name,
            instances=np.concatenate([instances for instances, _ in rows]),
            labels_of=csr_matrix(vstack([labels_of for _, labels_of in rows])),
            labels=np.concatenate([vectors.seen, novel]),
            memorization=1.0 if alone else self.predictor.memorization,
            depth=self.predictor.depth if among == "all" else None,
        )

    def _measured(self, method: Method, columns: Rows) -> dict[str, float]:
        """The metrics of the test rows that have one of these labels, found among them."""
        test = self.split.everything.test
        positives = csr_matrix(test.labels_of[:, columns] != 0)
        filtered = csr_matrix(test.filtered[:, columns])
        asked = np.flatnonzero(np.diff(positives.indptr))
        memory = OfflineMemory(
            keys=np.concatenate([method.instances, method.labels[columns]]).astype(np.float16),
            labels_of=csr_matrix(method.labels_of[:, columns]),
            label_ids=[self.split.everything.labels.uids[column] for column in columns.tolist()],
        )
        top_k = labels_to_rank(filtered[asked])
        ranked = predict(
            memory,
            memory.search(
                self.vectors.queries[asked],
                kind=voting_kind(method.memorization),
                count=method.depth or max(top_k, self.predictor.depth),
            ),
            tau=self.predictor.tau,
            memorization=method.memorization,
            top_k=top_k,
            order=memory.label_order,
        ).labels
        return evaluate(
            ranked,
            positives[asked],
            inverse_propensities=self._inverse_propensities[columns],
            filtered=filtered[asked],
        )

    @property
    def _labels(self) -> int:
        return len(self.split.everything.labels)

    @cached_property
    def _clicks(self) -> csr_matrix:
        """Y of the instances of training, [N, L]."""
        seen = self.vectors.clicks
        none = csr_matrix((seen.shape[0], self.split.facts.novel), dtype=np.float32)
        return csr_matrix(hstack([csr_matrix(seen != 0, dtype=np.float32), none]))

    @cached_property
    def _revealed(self) -> Floats:
        """E(x_u) in order of the one-shot rows, [U, d]."""
        columns = self.split.everything.train.labels_of.indices - self.split.facts.seen
        revealed: Floats = self.vectors.revealed[columns]
        return revealed

    @cached_property
    def _means(self) -> Floats:
        """Seen labels by the mean of their training queries, [S, d]; by their text without any."""
        vectors = self.vectors
        return class_means(vectors.clicks, vectors.instances, vectors.seen, text_weight=0.0)

    @cached_property
    def _inverse_propensities(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """[L]; nobody has clicked a novel label yet."""
        propensity = self.split.everything.propensity
        return inverse_propensity(self._clicks, a=propensity.a, b=propensity.b)
