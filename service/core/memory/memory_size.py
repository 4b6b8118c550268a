"""How many bytes of main memory rows and labels take that were learned since the bundle.

These are estimates: what a row or a label takes beside its content was measured once as the growth
of a process (`python -m loadtests.parts.live_bytes`), and rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.core.changes import Item
from service.core.types import Label, NewInstance, NewLabel

# A row's place in the graph, its text's and its votes' objects, and its entry in the maps.
BYTES_A_ROW = 900
BYTES_A_LABEL = 900  # its object, and its entries in the maps of labels
BYTES_AN_ENTRY = 130  # of metadata, or of queries: its objects
BYTES_A_VOTE = 4
BYTES_A_NUMBER = 2  # of a key, fp16


def bytes_of_row(text: str, *, votes: int, dimension: int) -> int:
    """The bytes of one row: its key of `dimension`, its text, and its votes."""
    return BYTES_A_ROW + BYTES_A_NUMBER * dimension + BYTES_A_VOTE * votes + len(text.encode())


def bytes_of_label(label: Label | NewLabel) -> int:
    """The bytes of one label beside its rows: its id, its metadata and its queries."""
    return (
        BYTES_A_LABEL
        + len(label.id.encode())
        + _bytes_of_texts(label.queries)
        + _bytes_of_metadata(label.metadata)
    )


def bytes_of_item(item: Item, *, dimension: int) -> int:
    """The bytes of what is posted: a label with its rows, or an instance's row."""
    if isinstance(item, NewInstance):
        return bytes_of_row(item.query, votes=len(item.labels), dimension=dimension)
    texts = (item.text, *item.queries)
    rows = sum(bytes_of_row(text, votes=1, dimension=dimension) for text in texts)
    return rows + bytes_of_label(item)


def _bytes_of_texts(texts: Sequence[str]) -> int:
    # A query's text is that of its row: only its place is counted here.
    return 8 * len(texts)


def _bytes_of_metadata(metadata: Mapping[str, str]) -> int:
    return sum(
        BYTES_AN_ENTRY + len(name.encode()) + len(value.encode())
        for name, value in metadata.items()
    )
