"""Debian's index of packages: two data sets from one file `Packages`, which the user gives.

`tags`: a package's description, a phrase or more, and its debtags (`role::program`): some 600
labels with many rows each. `dependencies`: a package's name, a word of its own, and the names of
the packages that it depends on: tens of thousands of labels. Of Debian 12: 28,309 and 55,966 rows.

The file is a list of paragraphs `Field: value`; further lines of a value begin with a space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from service.core.errors import InvalidData
from service.core.files.lines import numbered_lines

USED = frozenset({"Package", "Description", "Tag", "Depends"})
MOST_NAMES = 50  # a few packages stand for many others: their first 50 dependencies count


def tags(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (a package's description, its tags)."""
    for package in paragraphs(path):
        yield package.get("Description", ""), _parts(package.get("Tag", ""))


def dependencies(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (a package's name, the packages that it depends on); of alternatives all count."""
    for package in paragraphs(path):
        names = (
            re.split(r"[\s(:]", choice.strip(), maxsplit=1)[0]
            for part in _parts(package.get("Depends", ""))
            for choice in part.split("|")
        )
        yield package.get("Package", ""), list(dict.fromkeys(names))[:MOST_NAMES]


def paragraphs(path: Path) -> Iterator[dict[str, str]]:
    """Yield the fields in `USED` of each paragraph; `InvalidData` for a line that is no field."""
    fields: dict[str, str] = {}
    name = ""
    for line, text in numbered_lines(path):
        if not text.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif text[0] in " \t":
            # A line with a dot alone is an empty line of the description.
            if name in USED and text.strip() != ".":
                fields[name] += f" {text.strip()}"
        else:
            name, colon, value = text.partition(":")
            if not colon:
                raise InvalidData(path, "is not 'Field: value'", line=line)
            if name in USED:
                fields[name] = value.strip()
    if fields:
        yield fields


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]
