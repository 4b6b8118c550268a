"""Typed fields of labels, such as price and brand, and aliases, such as product codes.

The fields become the metadata of a bundle's labels, which filters of `/predict` read. A value is a
string, a number, a boolean or a list of strings. Aliases are further texts of a label.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from service.core.errors import InvalidData
from service.core.label_filter import (
    LARGEST_INTEGER,
    MOST_CHARACTERS,
    MOST_ENTRIES,
    MOST_METADATA_BYTES,
    Metadata,
    MetadataValue,
    kind_of,
    list_items,
    metadata_bytes,
)
from service.core.text_identity import (
    MOST_ALIASES,
    MOST_TEXT_CHARACTERS,
    distinct_aliases,
    readable,
    uncontrolled,
)


def field_types(fields: Sequence[Metadata]) -> Iterator[str]:
    """Yield each field with the types of its values, and how many labels have one."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for of_label in fields:
        for name, value in of_label.items():
            kind = "list" if isinstance(value, tuple) else kind_of(value)
            counts[name][kind] += 1
    for name, kinds in counts.items():
        yield f"{name} ({' or '.join(sorted(kinds))}, {kinds.total():,} labels)"


def checked_fields(values: Mapping[str, Any], *, path: Path, line: int) -> Metadata:
    """Return one label's fields as they are kept, from JSON or parquet.

    Raises `InvalidData` with `path`, `line` and the field, for a value of another type.
    """
    fields = {}
    for name, value in values.items():
        try:
            fields[name] = _checked(value)
        except ValueError as error:
            raise InvalidData(path, str(error), line=line, field=name) from error
    return fields


def require_postable(fields: Metadata, *, path: Path, line: int) -> None:
    """Raise `InvalidData` for fields that the service would refuse with its default limits."""
    for name, value in fields.items():
        texts = (name, *(value if isinstance(value, tuple) else [value]))
        if any(len(text) > MOST_CHARACTERS for text in texts if isinstance(text, str)):
            message = f"a name or a text has more than {MOST_CHARACTERS:,} characters"
            raise InvalidData(path, message, line=line, field=name[:MOST_CHARACTERS])
        try:
            for text in texts:
                uncontrolled(str(text))
        except ValueError as error:
            raise InvalidData(path, str(error), line=line, field=name) from error
    for what, count, most in (
        ("fields", len(fields), MOST_ENTRIES),
        ("items in its lists", list_items(fields), MOST_ENTRIES),
        ("bytes of names and values", metadata_bytes(fields), MOST_METADATA_BYTES),
    ):
        if count > most:
            message = f"the label has {count:,} {what}; at most {most:,} are allowed"
            raise InvalidData(path, message, line=line)


def checked_aliases(text: str, aliases: Any) -> tuple[str, ...]:
    """Return the aliases of the label with this text, each once and without the text.

    Raises `ValueError` for what is no list of texts.
    """
    listed: list[Any] | tuple[Any, ...] = aliases if isinstance(aliases, list | tuple) else [None]
    if not all(isinstance(alias, str) and alias.strip() for alias in listed):
        raise ValueError("must be a list of texts that are not empty")
    return distinct_aliases(text, map(str.strip, listed))


def require_postable_aliases(aliases: Sequence[str]) -> None:
    """Raise `ValueError` for aliases that the service would refuse with its default limits."""
    if any(len(alias) > MOST_TEXT_CHARACTERS for alias in aliases):
        raise ValueError(f"an alias has more than {MOST_TEXT_CHARACTERS:,} characters")
    for alias in aliases:
        readable(alias)
    if len(aliases) > MOST_ALIASES:
        raise ValueError(
            f"the label has {len(aliases)} aliases; at most {MOST_ALIASES} are allowed"
        )


def _checked(value: Any) -> MetadataValue:
    """Return a value as it is kept; raises `ValueError` if it is none."""
    if isinstance(value, Decimal):  # in parquet
        value = float(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if not abs(value) <= LARGEST_INTEGER:  # holds for NaN, too
            raise ValueError(
                f"{value} is no number of at most {LARGEST_INTEGER:,} in size; longer ones must be"
                " strings"
            )
        return value
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        kinds = sorted({type(text).__name__ for text in texts if not isinstance(text, str)})
        listed = "a list with " if isinstance(value, list) else ""
        raise ValueError(
            "must be a string, a number, true, false or a list of strings, not"
            f" {listed}{', '.join(kinds)}"
        )
    return tuple(value) if isinstance(value, list) else str(value)
