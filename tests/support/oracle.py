"""Slow, obvious prediction and retrieval to compare with: dense matrices and full sorting.

Shapes: R rows of the memory, L labels, d dimensions.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from service.core.encoding.encoder import Encoder, encode
from service.core.types import Floats, NewLabel, Role, RowKind
from tests.support.tiny.bundles import Catalogue


@dataclass(frozen=True, kw_only=True)
class OracleRow:
    """One row of the memory, with the labels that it votes for; those without a weight weigh 1."""

    kind: RowKind
    text: str
    vector: Floats  # [d], as stored: fp16, read as fp32
    voted: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass
class OracleItems:
    """Items in the order of their puts; a query attends to the `attended` most similar ones."""

    encoder: Encoder
    attended: int
    texts: dict[str, str] = field(default_factory=dict)

    def put(self, item_id: str, text: str) -> None:
        """An item that gets another text comes last."""
        if self.texts.get(item_id) != text:
            self.texts.pop(item_id, None)
            self.texts[item_id] = text

    def fused(self, query: Floats, named: Sequence[str] | None = None) -> Floats:
        """The normalised sum of a query [d] and its items: the most similar, or those `named`."""
        keys = [self._key(self.texts[item_id]) for item_id in (named or self.texts)]
        if named is None:
            keys = sorted(keys, key=lambda key: -float(key @ query))[: self.attended]
        total = np.sum([query, *keys], axis=0)
        return np.asarray(total / np.linalg.norm(total), np.float32) if keys else query

    def _key(self, text: str) -> Floats:
        stored = encode(self.encoder, [text], role=Role.ITEM)[0].astype(np.float16)
        return stored.astype(np.float32)


@dataclass
class Oracle:
    """The rows of each label, the bundle's instances, and clicks by query; changed in place.

    With `items` queries are fused: posted ones with the items of their time.
    """

    encoder: Encoder
    instances: list[OracleRow]
    labels: dict[str, tuple[OracleRow, ...]] = field(default_factory=dict)
    clicks: dict[str, OracleRow] = field(default_factory=dict)
    items: OracleItems | None = None

    @classmethod
    def of(cls, catalogue: Catalogue, encoder: Encoder) -> "Oracle":
        oracle = cls(encoder, [])
        for text, voted in catalogue.instances.items():
            oracle.instances.append(oracle._row(RowKind.INSTANCE, text, tuple(voted)))
        for label_id, text in catalogue.labels.items():
            oracle.put(NewLabel(id=label_id, text=text))
        return oracle

    def put(self, label: NewLabel) -> None:
        """Replace the rows of the label's text and of its queries, unless both are the same."""
        known = self.labels.get(label.id)
        if known is not None and [row.text for row in known] == [label.text, *label.queries]:
            return  # rows keep the items of their time
        self.labels[label.id] = (
            self._row(RowKind.LABEL, label.text, (label.id,)),
            *(self._row(RowKind.INSTANCE, query, (label.id,)) for query in label.queries),
        )

    def delete(self, label_id: str) -> None:
        """Remove the label's rows, and the rows that voted for no other label."""
        self.labels.pop(label_id, None)
        instances = [_without(row, label_id) for row in self.instances]
        self.instances = [row for row in instances if row is not None]
        clicks = {query: _without(row, label_id) for query, row in self.clicks.items()}
        self.clicks = {query: row for query, row in clicks.items() if row is not None}

    def click(self, query: str, *labels: str, weight: float = 1.0) -> None:
        """Let the query's row vote for all present labels that were ever clicked for it.

        Each weighs what it weighed when it was clicked last.
        """
        present = [label for label in labels if label in self.labels]
        known = self.clicks.get(query)
        before = {label: known.weights.get(label, 1.0) for label in known.voted} if known else {}
        weights = before | dict.fromkeys(present, weight)
        if weights != before:
            row = self._row(RowKind.INSTANCE, query, tuple(sorted(weights)))
            self.clicks[query] = replace(row, weights=weights)

    def rows(self, kind: RowKind | None = None) -> list[OracleRow]:
        """All rows that a search may return, of one kind or of both."""
        label_rows = [row for rows in self.labels.values() for row in rows]
        everything = [*self.instances, *label_rows, *self.clicks.values()]
        return [row for row in everything if kind in (None, row.kind)]

    def row_counts(self) -> Counter[tuple[RowKind, str, tuple[str, ...]]]:
        """How many rows have each description: kind, text, and the ids that they vote for."""
        return Counter((row.kind, row.text, tuple(sorted(row.voted))) for row in self.rows())

    def click_weights(self) -> dict[tuple[str, str], float]:
        """The weights that are not 1, by query and label id."""
        return {
            (query, label): weight
            for query, row in self.clicks.items()
            for label, weight in row.weights.items()
            if label in row.voted and weight != 1.0
        }

    def similarities(self, query: str, kind: RowKind | None = None) -> Floats:
        """Inner products with all rows of a kind, descending."""
        rows = self.rows(kind)
        vectors = np.array([row.vector for row in rows]).reshape(len(rows), -1)
        return -np.sort(-(vectors @ self._query(query)))

    def scores(
        self,
        query: str,
        *,
        tau: float,
        memorization: float,
        depth: int | None = None,
        items: Sequence[str] | None = None,
    ) -> dict[str, float]:
        """p(l | q) of every label, by Eq. 7 with V = [lambda Y; (1 - lambda) I].

        `items` are ids of those that the query attends to in place of the most similar.
        """
        kind = {0.0: RowKind.LABEL, 1.0: RowKind.INSTANCE}.get(memorization)
        rows = self.rows(kind)
        if not rows:
            return {}
        keys = np.array([row.vector for row in rows], np.float64)  # [R, d]
        similarities = keys @ self._query(query, items)  # [R]
        if depth is not None:
            cut = np.argsort(-similarities, kind="stable")[depth:]
            similarities[cut] = -np.inf
        weights = np.exp(similarities / tau) / np.exp(similarities / tau).sum()
        ids = sorted(self.labels)
        block = {RowKind.INSTANCE: memorization, RowKind.LABEL: 1.0 - memorization}
        values = np.array(
            [
                [
                    block[row.kind] * (label_id in row.voted) * row.weights.get(label_id, 1.0)
                    for label_id in ids
                ]
                for row in rows
            ]
        )  # [R, L]
        return dict(zip(ids, (weights @ values).tolist(), strict=True))

    def _row(self, kind: RowKind, text: str, voted: tuple[str, ...]) -> OracleRow:
        role = Role.LABEL if kind is RowKind.LABEL else Role.QUERY
        vector = encode(self.encoder, [text], role=role)[0].astype(np.float16).astype(np.float32)
        if kind is RowKind.INSTANCE:
            vector = self._fused(vector).astype(np.float16).astype(np.float32)
        return OracleRow(kind=kind, text=text, vector=vector, voted=voted)

    def _query(self, text: str, items: Sequence[str] | None = None) -> Floats:
        return self._fused(encode(self.encoder, [text], role=Role.QUERY)[0], items)

    def _fused(self, query: Floats, items: Sequence[str] | None = None) -> Floats:
        return query if self.items is None else self.items.fused(query, items)


def _without(row: OracleRow, label_id: str) -> OracleRow | None:
    """The row without its vote for a label; None if it has no other vote."""
    if label_id not in row.voted:
        return row
    remaining = tuple(voted for voted in row.voted if voted != label_id)
    return replace(row, voted=remaining) if remaining else None


def ranked(scores: Mapping[str, float], *, top_k: int) -> Sequence[tuple[str, float]]:
    """The `top_k` labels of the highest positive scores, descending; equal scores by label id."""
    voted = [(label_id, score) for label_id, score in scores.items() if score > 0.0]
    return sorted(voted, key=lambda pair: (-pair[1], pair[0]))[:top_k]
