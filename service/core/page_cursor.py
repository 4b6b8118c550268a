"""A page cursor: the last id of a page, after which the next page begins; fits into any URL.

Ids ascend, and the last id need not exist any more. As text, a cursor is `after.` and the id in
base64url. An id of more than 48 characters is cut, and a hash of the whole id follows:
`after.PREFIX.HASH`, at most 295 characters.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from service.core.errors import InvalidInput

Entry = TypeVar("Entry")

_PREFIX_CHARACTERS = 48
_HASH_CHARACTERS = 32
_FORM = re.compile(rf"after\.([A-Za-z0-9_-]{{1,256}})(?:\.([0-9a-f]{{{_HASH_CHARACTERS}}}))?")


@dataclass(frozen=True, kw_only=True)
class PageCursor:
    """The last id of a page: either the whole id, or its beginning and a hash of the whole."""

    prefix: str
    hash: str = ""

    @classmethod
    def behind(cls, last_id: str) -> PageCursor:
        """Return the cursor of the page after the one that ends with `last_id`."""
        if len(last_id) <= _PREFIX_CHARACTERS:
            return cls(prefix=last_id)
        return cls(prefix=last_id[:_PREFIX_CHARACTERS], hash=_hash(last_id))

    @classmethod
    def parse(cls, text: str, *, field: str) -> PageCursor:
        """Parse a cursor; empty text stands for the first page. Raises `InvalidInput`."""
        if not text:
            return FIRST_PAGE
        if found := _FORM.fullmatch(text):
            padding = "=" * (-len(found[1]) % 4)
            with suppress(ValueError):
                prefix = urlsafe_b64decode(found[1] + padding).decode()
                cursor = cls(prefix=prefix, hash=found[2] or "")
                if str(cursor) == text:
                    return cursor
        raise InvalidInput("must be `next` of the page before, unchanged", field=field)

    def __str__(self) -> str:
        """Return the cursor as text."""
        prefix = urlsafe_b64encode(self.prefix.encode()).decode().rstrip("=")
        return f"after.{prefix}{'.' if self.hash else ''}{self.hash}"

    def skip(self, entries: Iterable[Entry], *, id_of: Callable[[Entry], str]) -> Iterator[Entry]:
        """Return the entries after the cursor, given `entries` with ids above `prefix`.

        If the id was cut, entries with its prefix are skipped up to it; none if it is gone.
        """
        rest = iter(entries)
        if not self.hash:
            return rest
        alike: list[Entry] = []
        for entry in rest:
            entry_id = id_of(entry)
            if not entry_id.startswith(self.prefix):
                return chain(alike, [entry], rest)
            if _hash(entry_id) == self.hash:
                return rest
            alike.append(entry)
        return iter(alike)


FIRST_PAGE = PageCursor(prefix="")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]
