"""The changes of the memory, one a logged event."""

from __future__ import annotations

from dataclasses import dataclass

from service.core.types import Halves, NewInstance, NewLabel


@dataclass(frozen=True, kw_only=True, slots=True)
class PutLabel:
    """Create or replace a label; vectors [1 + queries, d] of its text, then of its queries."""

    sequence: int
    label: NewLabel
    vectors: Halves


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteLabel:
    """Delete a label; one that is not there changes nothing but the version."""

    sequence: int
    id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PutInstance:
    """Add a query with the labels that it was clicked for; vectors [1, d] of the query.

    Labels that are not there get no vote: another bundle may have been opened since it was logged.
    """

    sequence: int
    instance: NewInstance
    vectors: Halves


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """An event that changes nothing but the version."""

    sequence: int


Change = PutLabel | DeleteLabel | PutInstance | Passed
