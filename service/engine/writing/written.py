"""Results of writes, and how the label log keeps them beside an idempotency key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from service.core.encoding.representer import Neighbour


@dataclass(frozen=True, kw_only=True)
class WrittenLabel:
    """A label's id, its status (created, updated or unchanged), and the neighbours in its row."""

    id: str
    status: str
    neighbours: tuple[Neighbour, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Written:
    """The memory version that holds the request's writes, and a result for each of its items."""

    version: int
    labels: tuple[WrittenLabel, ...] = ()  # or items of the item memory
    accepted: int = 0  # instances


def to_document(written: Written) -> Mapping[str, Any]:
    """The result as JSON, all but its version."""
    return {
        "labels": [
            [label.id, label.status, [astuple(neighbour) for neighbour in label.neighbours]]
            for label in written.labels
        ],
        "accepted": written.accepted,
    }


def from_document(version: int, document: Mapping[str, Any]) -> Written:
    """The result that `to_document` was given."""
    labels = tuple(
        WrittenLabel(
            id=label_id,
            status=status,
            neighbours=tuple(
                Neighbour(id=neighbour_id, text=text, similarity=similarity)
                for neighbour_id, text, similarity in neighbours
            ),
        )
        for label_id, status, neighbours in document["labels"]
    )
    return Written(version=version, labels=labels, accepted=document["accepted"])
