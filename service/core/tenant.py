"""A tenant: the part of the memory whose labels have one value in a field of their metadata.

An API key of a tenant sees and changes that part alone. Tenants choose their ids independently of
each other, so a label that a tenant posts is stored under an id of its own, `FIELD=VALUE::ID`, and
shown to the tenant as `ID`. Labels that others post for a tenant, with its value in their metadata,
have plain ids, and belong to the tenant, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from service.core.errors import InvalidInput, echoed
from service.core.label_filter import Metadata

_SEPARATOR = "::"


@dataclass(frozen=True)
class Tenant:
    """The labels whose `field` is `value`.

    If it is a list with the value, the label is found by several tenants, and changed by none.
    """

    field: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Tenant:
        """Parse `FIELD=VALUE`; raises `InvalidInput`."""
        field, equal, value = text.partition("=")
        if not (field and equal and value) or _SEPARATOR in text:
            raise InvalidInput(
                f"{echoed(text)} is no tenant: write FIELD=VALUE, without {_SEPARATOR!r}",
                field="tenant",
            )
        return cls(field, value)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.field}={self.value}"

    def owns(self, metadata: Mapping[str, object]) -> bool:
        """Return whether a label with this metadata is the tenant's alone."""
        return metadata.get(self.field) == self.value

    def stored_id(self, label_id: str) -> str:
        """Return the id under which a label that the tenant posts is stored."""
        return f"{self}{_SEPARATOR}{label_id}"

    def stored_ids(self, label_id: str) -> Iterator[str]:
        """Yield the ids under which the tenant's label of this id may be stored."""
        yield self.stored_id(label_id)
        yield label_id

    def shown_id(self, stored_id: str) -> str:
        """Return a stored id as the tenant knows it."""
        return stored_id.removeprefix(self.stored_id(""))

    def shown_metadata(self, metadata: Metadata) -> Metadata:
        """Return a label's metadata as the tenant sees it: without the values of other tenants."""
        alone = not isinstance(metadata.get(self.field), list | tuple)
        return metadata if alone else {**metadata, self.field: self.value}
