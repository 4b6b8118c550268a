"""Turns the texts of new labels and instances into the rows that the memory stores for them.

Encoding children compute these rows before a write, and the write stores them in the log. If the
encoder has changed since, a replay computes them again.

Clients post labels (a text, aliases and queries), instances (a query) and items of the item memory
(a text). The row of an alias, a query or an item is the vector of its text. A label's own row is
the vector E(z_u) of its text, or IRENE's C(u) if the bundle has a combiner (see `irene`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.bundle.irene_files import NovelFiles
from service.core.encoding.encoder import Encoder
from service.core.encoding.irene import NovelLabels, OnnxCombiner, Shortlist
from service.core.index.protocol import RowFilter
from service.core.types import Floats, Halves, Role, Rows

MIN_SHORTLIST_EF = 64  # large enough that three labels survive refinement

ItemTexts = Sequence[tuple[Role, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A seen label whose classifier enriched a novel label, and the similarity <E(z_l), E(z_u)>."""

    id: str
    text: str
    similarity: float


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EncodedItem:
    """The rows of an item, fp16 [n, d] for its n texts, and the neighbours of a label."""

    rows: Halves
    neighbours: tuple[Neighbour, ...] = ()


class Representer:
    """Computes the rows of items. Representers with equal fingerprints compute equal rows."""

    def __init__(self, encoder: Encoder, novel: NovelPart | None = None) -> None:
        """Use `encoder`, and `novel` for labels' own rows (None: the vectors of their texts)."""
        self._encoder, self._novel = encoder, novel
        self.dimension = encoder.dimension
        self.fingerprint = encoder.fingerprint
        if novel is not None:
            both = f"{encoder.fingerprint}\0{novel.fingerprint}"
            self.fingerprint = hashlib.sha256(both.encode()).hexdigest()

    def encode(self, items: Sequence[ItemTexts]) -> list[EncodedItem]:
        """Return the rows of each item."""
        vectors = self._vectors(items)
        encoded_items = [EncodedItem(rows=rows.astype(np.float16)) for rows in vectors]
        labels = [place for place, item in enumerate(items) if item[0][0] is Role.LABEL]
        if self._novel is not None and labels:
            enriched = self._novel.encode_labels(
                [vectors[place] for place in labels],
                queries_from=[_texts_of_label(items[place]) for place in labels],
            )
            for place, encoded in zip(labels, enriched, strict=True):
                encoded_items[place] = encoded
        return encoded_items

    def _vectors(self, items: Sequence[ItemTexts]) -> list[Floats]:
        """Return the vectors [n, d] of the n texts of each item."""
        tokens = [
            self._encoder.tokenize([text], role=role)[0] for item in items for role, text in item
        ]
        vectors = self._encoder.embed(tokens)
        ends = np.cumsum([len(item) for item in items])
        return np.split(vectors, ends[:-1])


def _texts_of_label(item: ItemTexts) -> int:
    """Count a label's own texts, which come before its queries: its text and its aliases."""
    return sum(role is Role.LABEL for role, _ in item)


class NovelPart:
    """IRENE's part of a representer: computes labels' own rows."""

    def __init__(self, bundle: Bundle, files: NovelFiles) -> None:
        """Open the combiner and a search over the bundle's labels; raises `BundleAltered`."""
        self._bundle, self._columns = bundle, files.columns
        self.fingerprint = files.facts.fingerprint
        self._novel_labels = NovelLabels(
            classifiers=files.classifiers,
            shortlist=label_shortlist(bundle, files.columns),
            keys_of=lambda rows: bundle.keys[bundle.instances + files.columns[rows]],
            combine=OnnxCombiner(files.combiner),
            refinement=files.facts.refinement,
        )

    def encode_labels(
        self, vectors: Sequence[Floats], *, queries_from: Sequence[int]
    ) -> list[EncodedItem]:
        """Return labels' rows, given the vectors [1 + aliases + queries, d] of their texts.

        `queries_from` are the places of the first queries. Aliases stay as they are.
        """
        texts = np.stack([label_vectors[0] for label_vectors in vectors])
        no_query = np.full(texts.shape[1], np.nan, np.float32)
        mean_queries = np.stack(
            [
                label_vectors[first:].mean(axis=0) if len(label_vectors) > first else no_query
                for label_vectors, first in zip(vectors, queries_from, strict=True)
            ]
        )
        represented = self._novel_labels.represent(texts, mean_queries)
        return [
            EncodedItem(
                rows=np.concatenate([represented.vectors[place][None], label_vectors[1:]]).astype(
                    np.float16
                ),
                neighbours=self._neighbours(
                    represented.associated[place], represented.similarities[place]
                ),
            )
            for place, label_vectors in enumerate(vectors)
        ]

    def _neighbours(self, rows: Rows, similarities: Floats) -> tuple[Neighbour, ...]:
        """Return the labels at these rows of W; row -1 stands for none."""
        ids, texts = self._bundle.label_ids, self._bundle.label_texts
        columns = self._columns[rows].tolist()
        return tuple(
            Neighbour(id=ids[column], text=texts[column], similarity=round(similarity, 6))
            for row, column, similarity in zip(rows, columns, similarities.tolist(), strict=True)
            if row >= 0
        )


def open_representer(encoder: Encoder, bundle: Bundle) -> Representer:
    """Return the representer for a bundle, with IRENE's part if the bundle has its files."""
    files = bundle.novel
    return Representer(encoder, None if files is None else NovelPart(bundle, files))


def label_shortlist(bundle: Bundle, columns: Rows) -> Shortlist:
    """Return a search over the bundle's label keys that finds labels with a classifier.

    `columns` [S] are the columns of these labels. The search returns similarities [n, K] and rows
    of W [n, K]; -1 stands for a label without a classifier, or for an empty place.
    """
    row_of = np.full(bundle.labels, -1, np.int64)  # label column -> row of W
    row_of[columns] = np.arange(len(columns))
    first = bundle.instances
    row_filter = RowFilter(start=first, stop=first + bundle.labels)

    def shortlist(texts: Floats, count: int) -> tuple[Floats, Rows]:
        ef = max(MIN_SHORTLIST_EF, 2 * count)
        similarities, keys = bundle.segment.search(texts, count=count, ef=ef, row_filter=row_filter)
        rows: Rows = np.where(keys < 0, -1, row_of[np.maximum(keys - first, 0)])
        return similarities, rows

    return shortlist
