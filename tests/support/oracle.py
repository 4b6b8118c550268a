"""Slow reference implementation of prediction and retrieval: dense matrices and full sorting.

Shapes: R rows of the memory, L labels, d dimensions.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from service.core.encoding.encoder import Encoder, encode
from service.core.lexical.words import words_of
from service.core.memory.decay import NEVER, PLAIN, Vote, hour_of
from service.core.types import Floats, NewLabel, Role, RowKind
from tests.support.tiny.bundles import Catalogue

HALF_LIFE = 1.0  # of clicks, in days


@dataclass(frozen=True, kw_only=True)
class OracleRow:
    """One row of the memory, with the labels that it votes for, by default with plain votes."""

    kind: RowKind
    text: str
    vector: Floats  # [d], stored as fp16, read as fp32
    voted: tuple[str, ...]
    posted: bool = True
    alias: bool = False
    votes: Mapping[str, Vote] = field(default_factory=dict)

    def weight(self, label_id: str, hour: int | None) -> float:
        """Return what an hour has left of the weight of a vote; None: all of it."""
        vote = self.votes.get(label_id, PLAIN)
        age = 0 if hour is None else max(0, hour - vote.hour)
        return vote.weight * math.pow(0.5, age / (24 * HALF_LIFE))


@dataclass
class OracleItems:
    """Items in the order of their puts; a query attends to the `attended` nearest ones."""

    encoder: Encoder
    attended: int
    texts: dict[str, str] = field(default_factory=dict)

    def put(self, item_id: str, text: str) -> None:
        """Put an item; if its text changes, it becomes the last one."""
        if self.texts.get(item_id) != text:
            self.texts.pop(item_id, None)
            self.texts[item_id] = text

    def fused(self, query: Floats, named: Sequence[str] | None = None) -> Floats:
        """Return the normalized sum of a query [d] and its nearest or `named` items."""
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
    """A memory, changed in place: the bundle's instances, rows by label, and clicks by query.

    With `items`, queries are fused; a posted query with the items at the moment of its post.
    """

    encoder: Encoder
    instances: list[OracleRow]
    labels: dict[str, tuple[OracleRow, ...]] = field(default_factory=dict)
    clicks: dict[str, OracleRow] = field(default_factory=dict)
    items: OracleItems | None = None

    @classmethod
    def of(
        cls,
        catalogue: Catalogue,
        encoder: Encoder,
        *,
        aliases: Mapping[str, tuple[str, ...]] | None = None,
    ) -> "Oracle":
        oracle = cls(encoder, [])
        for text, voted in catalogue.instances.items():
            row = oracle._row(RowKind.INSTANCE, text, tuple(voted))
            oracle.instances.append(replace(row, posted=False))
        for label_id, text in catalogue.labels.items():
            label = NewLabel(id=label_id, text=text, aliases=(aliases or {}).get(label_id, ()))
            oracle.put(label)
            trained = (replace(row, posted=False) for row in oracle.labels[label_id])
            oracle.labels[label_id] = tuple(trained)
        return oracle

    def put(self, label: NewLabel) -> None:
        """Replace the rows of the label's text, aliases and queries, unless none changes."""
        rows = (
            self._row(RowKind.LABEL, label.text, (label.id,)),
            *(self._row(RowKind.INSTANCE, text, (label.id,), alias=True) for text in label.aliases),
            *(self._row(RowKind.INSTANCE, query, (label.id,)) for query in label.queries),
        )
        known = self.labels.get(label.id, ())
        if [(row.text, row.alias) for row in known] != [(row.text, row.alias) for row in rows]:
            self.labels[label.id] = rows  # unchanged rows stay fused with their old items

    def delete(self, label_id: str) -> None:
        """Remove the label's rows, its votes, and rows without any other vote."""
        self.labels.pop(label_id, None)
        instances = [_without(row, label_id) for row in self.instances]
        self.instances = [row for row in instances if row is not None]
        clicks = {query: _without(row, label_id) for query, row in self.clicks.items()}
        self.clicks = {query: row for query, row in clicks.items() if row is not None}

    def click(self, query: str, *labels: str, weight: float = 1.0, at: float | None = None) -> None:
        """Make the query's row vote for all existing labels that were ever clicked for it.

        Each vote has the weight and the hour of the label's last click, by the clicks' own times.
        """
        present = [label for label in labels if label in self.labels]
        known = self.clicks.get(query)
        before = {label: known.votes.get(label, PLAIN) for label in known.voted} if known else {}
        vote = Vote(weight=weight, hour=hour_of(at))
        late = [
            label
            for label in present
            if label in before and NEVER != vote.hour < before[label].hour != NEVER
        ]
        votes = before | dict.fromkeys([one for one in present if one not in late], vote)
        if votes != before:
            row = self._row(RowKind.INSTANCE, query, tuple(sorted(votes)))
            self.clicks[query] = replace(row, votes=votes)

    def unlearn(self, query: str, *labels: str, trained: bool = True) -> None:
        """Remove the query's clicks on the labels; if `trained`, its votes from every other row."""
        for label in set(labels) & self.labels.keys():
            click = self.clicks.pop(query, None)
            remaining = None if click is None else _without(click, label)
            if remaining is not None:
                self.clicks[query] = remaining
            if not trained:
                continue
            instances = [
                _without(row, label) if row.text == query else row for row in self.instances
            ]
            self.instances = [row for row in instances if row is not None]
            first, *listed = self.labels[label]
            self.labels[label] = (first, *(row for row in listed if row.alias or row.text != query))

    def rows(self, kind: RowKind | None = None) -> list[OracleRow]:
        """Return all rows that a search may return, of one kind or of both."""
        label_rows = [row for rows in self.labels.values() for row in rows]
        everything = [*self.instances, *label_rows, *self.clicks.values()]
        return [row for row in everything if kind in (None, row.kind)]

    def row_counts(self) -> Counter[tuple[RowKind | str, str, tuple[str, ...]]]:
        """Count the rows of each description: kind, text, and the ids that they vote for."""
        return Counter(
            ("alias" if row.alias else row.kind, row.text, tuple(sorted(row.voted)))
            for row in self.rows()
        )

    def click_weights(self, hour: int | None = None) -> dict[tuple[str, str], float]:
        """Map (query, label id) to what an hour has left of a click's weight if it is not 1."""
        weights = {
            (query, label): row.weight(label, hour)
            for query, row in self.clicks.items()
            for label in row.voted
        }
        return {pair: weight for pair, weight in weights.items() if weight != 1.0}

    def matches(self, query: str) -> Counter[tuple[str, float, float]]:
        """Count the texts of the rows that share words with a query, by coverage and `own`."""
        rows = [(row, set(words_of(row.text))) for row in self.rows()]
        wanted = words_of(query)
        counts = {word: sum(word in words for _, words in rows) for word in wanted}
        rarity = {
            word: math.log1p((len(rows) - count + 0.5) / (count + 0.5))
            for word, count in counts.items()
        }
        covered = [
            sum(rarity[word] for word in wanted if word in words) / sum(rarity.values())
            for _, words in rows
        ]
        has_code = any(character.isdigit() for word in wanted for character in word)
        is_known = any(words == set(wanted) and not row.posted for row, words in rows)
        found = Counter[tuple[str, float, float]]()
        for (row, words), coverage in zip(rows, covered, strict=True):
            alone = row.posted or (has_code and words.issuperset(wanted))
            if is_known:
                alone = has_code and words == set(wanted)
            as_good = sum(other >= coverage - 1e-12 for other in covered)
            own = 0.8 * coverage * min(1.0, 4 / as_good) if alone else 0.0
            if coverage:
                found[row.text, round(coverage, 9), round(own, 9)] += 1
        return found

    def nearest(self, query: str, kind: RowKind | None = None, *, depth: int) -> Floats:
        """Return the `depth` largest inner products; equal keys give at most a quarter of them."""
        vector, found, taken = self._query(query), list[float](), Counter[bytes]()
        for row in sorted(self.rows(kind), key=lambda row: -float(row.vector @ vector)):
            key = row.vector.tobytes()
            taken[key] += 1
            if 4 * (taken[key] - 1) < depth:
                found.append(float(row.vector @ vector))
        return np.array(found[:depth], np.float32)

    def scores(
        self,
        query: str,
        *,
        tau: float,
        memorization: float,
        depth: int | None = None,
        items: Sequence[str] | None = None,
        hour: int | None = None,
    ) -> dict[str, float]:
        """Return p(l | q) of every label by Eq. 7 with V = [lambda Y; (1 - lambda) I].

        The query attends to the items with the ids `items` instead of the nearest ones. Clicks have
        the weight that is left at an `hour`.
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
                    block[row.kind] * (label_id in row.voted) * row.weight(label_id, hour)
                    for label_id in ids
                ]
                for row in rows
            ]
        )  # [R, L]
        return dict(zip(ids, (weights @ values).tolist(), strict=True))

    def _row(
        self, kind: RowKind, text: str, voted: tuple[str, ...], *, alias: bool = False
    ) -> OracleRow:
        role = Role.LABEL if alias or kind is RowKind.LABEL else Role.QUERY
        vector = encode(self.encoder, [text], role=role)[0].astype(np.float16).astype(np.float32)
        if role is Role.QUERY:
            vector = self._fused(vector).astype(np.float16).astype(np.float32)
        return OracleRow(kind=kind, text=text, vector=vector, voted=voted, alias=alias)

    def _query(self, text: str, items: Sequence[str] | None = None) -> Floats:
        return self._fused(encode(self.encoder, [text], role=Role.QUERY)[0], items)

    def _fused(self, query: Floats, items: Sequence[str] | None = None) -> Floats:
        return query if self.items is None else self.items.fused(query, items)


def _without(row: OracleRow, label_id: str) -> OracleRow | None:
    """Return the row without its vote for a label, or None if it has no other vote."""
    if label_id not in row.voted:
        return row
    remaining = tuple(voted for voted in row.voted if voted != label_id)
    return replace(row, voted=remaining) if remaining else None


def ranked(scores: Mapping[str, float], *, top_k: int) -> Sequence[tuple[str, float]]:
    """Return the `top_k` labels with the highest positive scores; ties are ordered by label id."""
    voted = [(label_id, score) for label_id, score in scores.items() if score > 0.0]
    return sorted(voted, key=lambda pair: (-pair[1], pair[0]))[:top_k]
