"""From the texts of new labels and instances to the rows that the memory stores for them.

Encoding children compute these rows before a write, commits write them to the log, and a replay
computes them again if the encoder has changed since.

What is posted is a label (its text, then its queries), an instance (its query alone) or an item of
the item memory (its text alone). A query's row is its vector E(x), and an item's that of its text.
A label's own row is the vector E(z_u) of its text, or IRENE's C(u) if the bundle has a combiner
(see `irene`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.encoding.encoder import Encoder
from service.core.encoding.irene import NovelLabels, Shortlist
from service.core.encoding.onnx_combiner import OnnxCombiner
from service.core.index.protocol import RowFilter
from service.core.types import Floats, Halves, Role, Rows

MIN_SHORTLIST_EF = 64  # minimum ef: three labels must survive refinement

ItemTexts = Sequence[tuple[Role, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A seen label whose classifier enriched a novel label, and <E(z_l), E(z_u)>."""

    id: str
    text: str
    similarity: float


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EncodedItem:
    """The rows of an item, fp16 [1 + queries, d] or [1, d], and the neighbours of a label."""

    rows: Halves
    neighbours: tuple[Neighbour, ...] = ()


class Representer:
    """Computes the rows of items; two representers of equal fingerprint compute equal rows."""

    def __init__(self, encoder: Encoder, novel: NovelPart | None = None) -> None:
        """Use `encoder`, and `novel` for the own rows of labels; None: their texts' vectors."""
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
            enriched = self._novel.encode_labels([vectors[place] for place in labels])
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


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelPart:
    """IRENE's part of a representer; `columns` [S] are the label columns of its classifiers."""

    labels: NovelLabels
    columns: Rows
    bundle: Bundle
    fingerprint: str

    def encode_labels(self, vectors: Sequence[Floats]) -> list[EncodedItem]:
        """Return labels' rows, from the vectors of their texts and queries, [1 + queries, d]."""
        texts = np.stack([label_vectors[0] for label_vectors in vectors])
        no_query = np.full(texts.shape[1], np.nan, np.float32)
        mean_queries = np.stack(
            [
                label_vectors[1:].mean(axis=0) if len(label_vectors) > 1 else no_query
                for label_vectors in vectors
            ]
        )
        represented = self.labels.represent(texts, mean_queries)
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
        """Name the labels at these rows of W; row -1 is empty."""
        ids, texts = self.bundle.label_ids, self.bundle.label_texts
        columns = self.columns[rows].tolist()
        return tuple(
            Neighbour(id=ids[column], text=texts[column], similarity=round(similarity, 6))
            for row, column, similarity in zip(rows, columns, similarities.tolist(), strict=True)
            if row >= 0
        )


def open_representer(encoder: Encoder, bundle: Bundle) -> Representer:
    """Return the representer for a bundle, with IRENE's part if the bundle has its files."""
    files = bundle.novel
    if files is None:
        return Representer(encoder)
    novel = NovelLabels(
        classifiers=files.classifiers,
        shortlist=label_shortlist(bundle, files.columns),
        keys_of=lambda rows: bundle.keys[bundle.instances + files.columns[rows]],
        combine=OnnxCombiner(files.combiner),
        refinement=files.facts.refinement,
    )
    return Representer(
        encoder,
        NovelPart(
            labels=novel,
            columns=files.columns,
            bundle=bundle,
            fingerprint=files.facts.fingerprint,
        ),
    )


def label_shortlist(bundle: Bundle, columns: Rows) -> Shortlist:
    """Return a search over the bundle's label keys, for labels that have a classifier.

    `columns` [S] are their label columns. The search returns similarities [n, K] and rows of W
    [n, K]; -1 is a label without a classifier, or an empty place.
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
