"""Changes of the memory as the writer makes them from events, and their segments without a child.

Shapes: n rows, d dimensions.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from service.core.encoding.encoder import encode
from service.core.index.libraries import load_library
from service.core.index.protocol import Segment
from service.core.memory.changes import DeleteLabel, PutInstance, PutLabel
from service.core.memory.compaction import Extent
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.types import Halves, NewInstance, NewLabel, Role
from tests.support.tiny_encoder import TrigramEncoder

ENCODER = TrigramEncoder()


def put(sequence: int, label: NewLabel) -> PutLabel:
    texts = encode(ENCODER, [label.text, *label.queries], role=Role.LABEL)
    return PutLabel(sequence=sequence, label=label, vectors=texts.astype(np.float16))


def delete(sequence: int, label_id: str) -> DeleteLabel:
    return DeleteLabel(sequence=sequence, id=label_id)


def click(sequence: int, query: str, *labels: str) -> PutInstance:
    vectors = encode(ENCODER, [query], role=Role.QUERY).astype(np.float16)
    instance = NewInstance(query=query, labels=labels)
    return PutInstance(sequence=sequence, instance=instance, vectors=vectors)


def vectors_of(view: View, extent: Extent) -> Halves:
    """The vectors [n, d] of an extent's rows, from the parts that hold them now."""
    rows = extent.rows
    pieces = [(part, rows[(rows >= part.first) & (rows < part.stop)]) for part in view.parts]
    return np.concatenate([part.vectors(own) for part, own in pieces if len(own)])


def build(view: View, extent: Extent, folder: Path) -> Segment | None:
    """The segment of an extent, built in this process; None for one without rows."""
    if not len(extent.rows):
        return None
    parameters = view.bundle.manifest.index.parameters()
    library = load_library(parameters.library)
    vectors = vectors_of(view, extent)
    path = folder / f"{extent.first}-{extent.stop}-{view.version}.index"
    library.build(vectors, parameters, path, lambda rows: None)
    return library.open(path, rows=len(vectors), dimension=vectors.shape[1])


def seal(memory: KnowledgeMemory, folder: Path, extents: Iterable[Extent] | None = None) -> None:
    """Build and attach planned extents, by default all that are not sealed yet."""
    for extent in list(memory.view.unsealed()) if extents is None else extents:
        assert memory.attach(extent, build(memory.view, extent, folder))
