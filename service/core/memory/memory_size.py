"""How many bytes of main memory rows and labels take that were learned since the bundle.

These are estimates: what a row or a label takes beside its content was measured as the growth of a
process (`python -m loadtests.parts.live_bytes`), and rounded. A sealed row's key lies in a mapped
file, which the system may drop and read again; it is counted all the same, since searches need it.
"""

from __future__ import annotations

from collections.abc import Mapping

from service.core.changes import Item
from service.core.items.item_memory import bytes_of_memory_item
from service.core.types import Label, NewInstance, NewItem, NewLabel

# Its text's and its votes' objects, its entry in the maps, its place in the graph.
BYTES_A_ROW = 500
BYTES_A_LABEL = 900  # its object, and its entries in the maps of labels
BYTES_A_QUERY = 8  # a label's, beside its row: the text is the row's
BYTES_AN_ENTRY = 130  # of metadata: its objects
BYTES_A_VOTE = 4
BYTES_A_NUMBER = 2  # of a key, fp16
BYTES_OF_WEIGHTS = 1_400  # of a click: their objects, and its entries in the maps of weights
BYTES_A_WEIGHT = 4


def bytes_of_row(text: str, *, votes: int, dimension: int, weighted: bool = False) -> int:
    """The bytes of one row: its key of `dimension`, its text, its votes and their weights."""
    weights = BYTES_OF_WEIGHTS + BYTES_A_WEIGHT * votes if weighted else 0
    key = BYTES_A_NUMBER * dimension
    return BYTES_A_ROW + key + BYTES_A_VOTE * votes + len(text.encode()) + weights


def bytes_of_label(label: Label | NewLabel) -> int:
    """The bytes of one label beside its rows: its id, its metadata and its queries."""
    return (
        BYTES_A_LABEL
        + len(label.id.encode())
        + BYTES_A_QUERY * len(label.queries)
        + _bytes_of_metadata(label.metadata)
    )


def bytes_of_item(item: Item, *, dimension: int) -> int:
    """The bytes of what is posted: a label with its rows, an instance's row, or an item."""
    if isinstance(item, NewItem):
        return bytes_of_memory_item(item.id, item.text, dimension=dimension)
    if isinstance(item, NewInstance):
        return bytes_of_row(
            item.query,
            votes=len(item.labels),
            dimension=dimension,
            weighted=item.vote_weight != 1.0,
        )
    texts = (item.text, *item.queries)
    rows = sum(bytes_of_row(text, votes=1, dimension=dimension) for text in texts)
    return rows + bytes_of_label(item)


def _bytes_of_metadata(metadata: Mapping[str, str]) -> int:
    return sum(
        BYTES_AN_ENTRY + len(name.encode()) + len(value.encode())
        for name, value in metadata.items()
    )
