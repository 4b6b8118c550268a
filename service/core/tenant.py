"""A tenant: the part of the memory whose labels have one value in a field of their metadata.

An API key of a tenant sees and changes that part alone. Tenants choose their ids independently of
each other, so a label that a tenant posts is stored under an id of its own, `FIELD=VALUE::ID`, and
shown to the tenant as `ID`. Labels that others post for a tenant, with its value in their metadata,
have plain ids, and belong to the tenant, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from service.core.errors import InvalidInput, echoed

if TYPE_CHECKING:  # it needs numpy, and the help of commands does without
    from service.core.label_filter import Metadata

NAMESPACE_END = "::"
_REMEMBERED = 1_024  # namespaces: a label that a tenant posts needs its own several times
_ESCAPED = str.maketrans({"\\": "\\\\", ":": "\\:"})
_OWNER = re.compile(r"((?:[^\\:]|\\.)*)::", re.DOTALL)  # an escaped name at the start of another
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@lru_cache(_REMEMBERED)
def namespace(*owners: str) -> str:
    r"""Return the beginning of all names that belong to some owners, such as `acme::sku-7`.

    In the owners' own names, `\` and `:` are escaped by a `\`. So among names with equally many
    owners, no two owners share one, whatever the characters.
    """
    return "".join(owner.translate(_ESCAPED) + NAMESPACE_END for owner in owners)


@dataclass(frozen=True)
class Tenant:
    """The labels whose `field`, a name without "=", is `value`.

    If it is a list with the value, the label is found by several tenants, and changed by none.
    """

    field: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Tenant:
        """Parse `FIELD=VALUE`; raises `InvalidInput`."""
        field, equal, value = text.partition("=")
        if not (field and equal and value):
            raise InvalidInput(f"{echoed(text)} is no tenant: write FIELD=VALUE", field="tenant")
        return cls(field, value)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.field}={self.value}"

    @classmethod
    def named_in(cls, metadata: Mapping[str, object]) -> Iterator[Tenant]:
        """Yield every tenant that would find a label with this metadata, whether it exists."""
        for field, value in metadata.items():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, str):
                    yield cls(field, one)

    def owns(self, metadata: Mapping[str, object]) -> bool:
        """Return whether a label with this metadata is the tenant's alone."""
        return metadata.get(self.field) == self.value

    def finds(self, metadata: Mapping[str, object]) -> bool:
        """Return whether a label with this metadata is the tenant's, perhaps not alone."""
        value = metadata.get(self.field)
        return self.value in value if isinstance(value, tuple) else value == self.value

    def stored_id(self, label_id: str) -> str:
        """Return the id under which a label that the tenant posts is stored."""
        return namespace(str(self)) + label_id

    def stored_ids(self, label_id: str) -> Iterator[str]:
        """Yield the ids under which the tenant's label of this id may be stored."""
        yield self.stored_id(label_id)
        yield label_id

    def other_id(self, stored_id: str) -> str:
        """Return the other one of two stored ids that the tenant knows as the same id."""
        own = self.stored_id("")
        return stored_id.removeprefix(own) if stored_id.startswith(own) else own + stored_id

    @classmethod
    def of_stored_id(cls, stored_id: str) -> Tenant | None:
        """Return the tenant that stored a label under this id; None if none seems to have."""
        owner = _OWNER.match(stored_id)
        field, _, value = _ESCAPE.sub(r"\1", owner[1] if owner else "").partition("=")
        return cls(field, value) if field and value else None

    def shown_id(self, stored_id: str) -> str:
        """Return a stored id as the tenant knows it."""
        return stored_id.removeprefix(self.stored_id(""))

    def shown_metadata(self, metadata: Metadata) -> Metadata:
        """Return a label's metadata as the tenant sees it: without the values of other tenants."""
        value = metadata.get(self.field)
        shared = isinstance(value, list | tuple) and self.value in value
        return {**metadata, self.field: self.value} if shared else metadata
