"""Two data sets from Debian's index of packages, a file `Packages` that the user gives.

`tags`: a row is a package's description, its labels are the debtags (`role::program`), about 600
with many rows each. `dependencies`: a row is a package's name, its labels are the packages that it
depends on, tens of thousands in all. Debian 12 yields 28,309 and 55,966 rows.

The file has a paragraph of `Field: value` lines per package. Continuation lines begin with a space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from service.core.errors import InvalidData
from service.core.files.lines import numbered_lines

USED = frozenset({"Package", "Description", "Tag", "Depends"})
MOST_NAMES = 50  # of the many dependencies of a few metapackages, only the first 50 count


def tags(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (a package's description, its tags)."""
    for package in paragraphs(path):
        yield package.get("Description", ""), _parts(package.get("Tag", ""))


def dependencies(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (a package's name, the packages that it depends on, all alternatives included)."""
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
            # A line with only a dot is an empty line of the description.
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
