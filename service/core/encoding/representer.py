"""Texts to learn as rows of the memory: what children encode, commits write and replays repeat.

An item is a label, its text and then its queries, or an instance, its query alone. A label's own
row is E(z_u), or C(u) where the bundle has a combiner (see `novel`); the rows of queries are E(x).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.encoding.encoder import Encoder, encode
from service.core.encoding.irene import NovelLabels, Shortlist
from service.core.encoding.onnx_combiner import OnnxCombiner
from service.core.index.protocol import RowFilter
from service.core.types import Floats, Halves, Role, Rows

LEAST_QUEUE = 64  # of a shortlist's search, which three labels are to be left of

ItemTexts = Sequence[tuple[Role, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A seen label whose classifier enriched a novel one, and <E(z_l), E(z_u)>."""

    id: str
    text: str
    similarity: float


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Made:
    """An item's rows in fp16, [1 + queries, d] or [1, d], and what enriched a label."""

    rows: Halves
    neighbours: tuple[Neighbour, ...] = ()


class Representer:
    """Makes rows; equal fingerprints mean equal rows."""

    def __init__(self, encoder: Encoder, novel: NovelPart | None = None) -> None:
        """Without a novel part, a label's row is its text's vector."""
        self._encoder, self._novel = encoder, novel
        self.dimension = encoder.dimension
        self.fingerprint = encoder.fingerprint
        if novel is not None:
            both = f"{encoder.fingerprint}\0{novel.fingerprint}"
            self.fingerprint = hashlib.sha256(both.encode()).hexdigest()

    def make(self, items: Sequence[ItemTexts]) -> list[Made]:
        """The rows of each item; each text is encoded alone, as it is served."""
        vectors = [
            np.concatenate([encode(self._encoder, [text], role=role) for role, text in item])
            for item in items
        ]
        made = [Made(rows=own.astype(np.float16)) for own in vectors]
        labels = [place for place, item in enumerate(items) if item[0][0] is Role.LABEL]
        if self._novel is not None and labels:
            represented = self._novel.represent([vectors[place] for place in labels])
            for place, own in zip(labels, represented, strict=True):
                made[place] = own
        return made


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelPart:
    """A bundle's way to represent novel labels; `columns` [S] are those of its classifiers."""

    labels: NovelLabels
    columns: Rows
    bundle: Bundle
    fingerprint: str

    def represent(self, vectors: Sequence[Floats]) -> list[Made]:
        """Labels from the vectors of their texts and queries, [1 + queries, d] each."""
        texts = np.stack([own[0] for own in vectors])
        none = np.full(texts.shape[1], np.nan, np.float32)
        queries = np.stack([own[1:].mean(axis=0) if len(own) > 1 else none for own in vectors])
        found = self.labels.represent(texts, queries)
        return [
            Made(
                rows=np.concatenate([found.vectors[place][None], own[1:]]).astype(np.float16),
                neighbours=self._neighbours(found.associated[place], found.similarities[place]),
            )
            for place, own in enumerate(vectors)
        ]

    def _neighbours(self, places: Rows, similarities: Floats) -> tuple[Neighbour, ...]:
        ids, texts = self.bundle.label_ids, self.bundle.label_texts
        columns = self.columns[places].tolist()
        return tuple(
            Neighbour(id=ids[column], text=texts[column], similarity=round(similarity, 6))
            for place, column, similarity in zip(
                places, columns, similarities.tolist(), strict=True
            )
            if place >= 0
        )


def open_representer(encoder: Encoder, bundle: Bundle) -> Representer:
    """What makes rows for a bundle's memory."""
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
    """Search a bundle's label keys for those that have a classifier; `columns` [S] are theirs."""
    place_of = np.full(bundle.labels, -1, np.int64)
    place_of[columns] = np.arange(len(columns))
    first = bundle.instances
    row_filter = RowFilter(start=first, stop=first + bundle.labels)

    def shortlist(texts: Floats, count: int) -> tuple[Floats, Rows]:
        ef = max(LEAST_QUEUE, 2 * count)
        similarities, rows = bundle.segment.search(texts, count=count, ef=ef, row_filter=row_filter)
        found: Rows = np.where(rows < 0, -1, place_of[np.maximum(rows - first, 0)])
        return similarities, found

    return shortlist
