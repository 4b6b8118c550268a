"""Decides the type of a catalogue's column, which its labels get as a field.

Cells of csv and tsv files are texts. Such a column has numbers if each filled cell is a number that
can be written back as the same text, by one rule for the column:

    29.90, 19.95, 5     numbers: decimals that end in 0 have the same number of places
    3.9, 3.10           strings: as a number, 3.10 would be 3.1
    0012, 32E4          strings: a number would lose zeros, or is a code
    340123451234512345  strings: no float has all the digits
    1,299.00, n/a       strings

A column of `true` and `false` alone has booleans, any other strings. In .jsonl and .parquet, values
keep their types. A type that the user gives replaces all this.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

from service.core.errors import InvalidData, InvalidInput, echoed
from service.core.label_filter import LARGEST_INTEGER, MetadataValue, kind_of
from service.core.tables.columns import is_blank

FieldType = Literal["number", "boolean", "string"]
_NUMBER = re.compile(
    r"-?(?:0|[1-9][0-9]*)(?:\.(?P<decimals>[0-9]+)(?P<exponent>[eE][+-]?[0-9]+)?)?"
)
_ANY_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SEPARATED = re.compile(r"[+-]?[0-9]{1,3}([,' \u00a0\u202f][0-9]{3})+(\.[0-9]+)?")
_BOOLEANS = {"true": True, "false": False}
# What tables write for "there is none". A column of a given type other than strings lacks it.
NOTHING = frozenset({"-", "n/a", "na", "nan", "#n/a", "none", "null", "nil", "?"})

Cell = tuple[int, Any]  # the line, and what the file has there


def parse_field_types(given: Sequence[str], fields: Sequence[str]) -> dict[str, FieldType]:
    """Parse `FIELD=TYPE`, of the user's option; raises `InvalidInput`, which names the option."""
    types: dict[str, FieldType] = {}
    for one in given:
        name, equals, type_ = one.rpartition("=")
        if not equals or type_ not in get_args(FieldType):
            kinds = ", ".join(get_args(FieldType))
            raise InvalidInput(f"--field-type must be FIELD=TYPE with one of {kinds}, not {one!r}")
        if name not in fields:
            raise InvalidInput(f"--field-type names {name!r}, but --label-field does not")
        types[name] = type_  # type: ignore[assignment]
    return types


@dataclass(frozen=True, kw_only=True)
class TypedColumn:
    """The values of a column, None for an empty cell, and sentences about what was decided."""

    values: Sequence[Any]
    notes: tuple[str, ...] = ()


def typed_column(
    cells: Sequence[Cell], name: str, path: Path, *, given: FieldType | None, are_texts: bool
) -> TypedColumn:
    """Return a column's values by the type `given`, or else by the one that its cells have.

    `are_texts` tells whether the file has nothing but texts. Raises `InvalidData` for a cell that
    is not of the type given.
    """
    filled = [(line, cell) for line, cell in cells if not is_blank(cell) and cell != []]
    if are_texts:
        filled = [(line, cell.strip()) for line, cell in filled]
    nothing = [(line, cell) for line, cell in filled if _is_nothing(cell, given)]
    notes = []
    if nothing:
        line, cell = nothing[0]
        taken = f"{echoed(str(cell))} is taken for an empty cell ({len(nothing):,} such cells)"
        notes = [f"{path}:{line}: {name}: {taken}"]
        filled = [(line, cell) for line, cell in filled if not _is_nothing(cell, given)]
    read: Callable[[Any], Any] = _as_it_is
    if given is not None:
        read = _READERS[given]
    elif are_texts:
        read, more = _type_of_texts(filled, f"{path}", name)
        notes += more
    else:
        notes += _mixed(filled, path, name)
    values = dict[int, Any]()
    for line, cell in filled:
        try:
            values[line] = read(cell)
        except ValueError as error:
            raise InvalidData(path, str(error), line=line, field=name) from error
    return TypedColumn(values=[values.get(line) for line, _ in cells], notes=tuple(notes))


def _is_nothing(cell: Any, given: FieldType | None) -> bool:
    """Whether a filled cell stands for an empty one; in a column of strings, no text does."""
    if isinstance(cell, str):
        return given in ("number", "boolean") and cell.strip().casefold() in NOTHING
    return isinstance(cell, float) and math.isnan(cell)


def _as_it_is(value: Any) -> Any:
    return value


def _type_of_texts(
    texts: Sequence[tuple[int, str]], path: str, name: str
) -> tuple[Callable[[Any], MetadataValue], tuple[str, ...]]:
    """Return what reads the filled cells of a column, and a note if few cells spoil its numbers."""
    if texts and all(text.lower() in _BOOLEANS for _, text in texts):
        return _boolean, ()
    wrong = [(line, text, why) for line, text in texts if (why := _why_no_number(text))]
    if not wrong:
        wrong = list(_unequal_decimals(texts))
        if not wrong:
            return _number, ()
    numbers = len(texts) - len(wrong)
    if 2 * numbers < len(texts):
        return str, ()
    line, text, why = wrong[0]
    return str, (
        f"{path}:{line}: {name}: {echoed(text)} {why}, so all values are strings, though"
        f" {numbers:,} of {len(texts):,} are numbers, and no filter compares strings by size;"
        f" --field-type {name}=number changes that",
    )


def _why_no_number(text: str) -> str | None:
    """Return why a text is none that a number would be written as, or None."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return "is not how a number is written" if _ANY_NUMBER.fullmatch(text) else "is no number"
    number, decimals = float(text), match["decimals"] or ""
    if match["exponent"] is None and f"{number or 0.0:.{len(decimals)}f}" != text:
        return "has more digits than a number keeps" if number else "is not how zero is written"
    return None if abs(number) <= LARGEST_INTEGER else f"is beyond {LARGEST_INTEGER:,}"


def _unequal_decimals(texts: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """Yield the cells with another number of decimals than most, if some decimals end in 0."""
    decimals = {text: len(text.partition(".")[2]) for _, text in texts if "." in text}
    if not any(text.endswith("0") for text in decimals):
        return
    [(usual, _)] = Counter(decimals[text] for _, text in texts if "." in text).most_common(1)
    for line, text in texts:
        if decimals.get(text, usual) != usual:
            yield line, text, f"has not as many decimals as other cells ({usual})"


def _mixed(filled: Sequence[Cell], path: Path, name: str) -> Iterator[str]:
    """Yield a note if the values of a column are of several types."""
    kinds = Counter(_kind(cell) for _, cell in filled)
    if len(kinds) < 2:
        return
    rarest = min(kinds, key=lambda kind: kinds[kind])
    line, cell = next((line, cell) for line, cell in filled if _kind(cell) == rarest)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    yield (
        f"{path}:{line}: {name}: {echoed(str(cell))} is a {rarest}, but values differ ({counts});"
        f" no filter finds all of them; --field-type {name}=TYPE makes them alike"
    )


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else kind_of(value)


def _number(value: Any) -> float:
    """Return a number; a whole one without a point stays whole."""
    if isinstance(value, Decimal):
        value = str(value)
    if isinstance(value, str) and _ANY_NUMBER.fullmatch(value):
        number: float = int(value) if value.lstrip("+-").isdigit() else float(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    else:
        shown = echoed(value if isinstance(value, str) else str(value))
        written = isinstance(value, str) and _SEPARATED.fullmatch(value)
        advice = "; write it without separators of thousands" if written else ""
        raise ValueError(f"{shown} is no number{advice}")
    if not abs(number) <= LARGEST_INTEGER:  # holds for NaN, too
        raise ValueError(f"{value} is no number of at most {LARGEST_INTEGER:,} in size")
    return number


def _boolean(value: Any) -> bool:
    known = _BOOLEANS.get(str(value).lower()) if isinstance(value, str | bool) else None
    if known is None:
        raise ValueError(f"{echoed(str(value))} is neither true nor false")
    return known


def _string(value: Any) -> MetadataValue:
    """Return a text as it is, and a number as it is written; lists stay what they are."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | Decimal) else value


_READERS: dict[FieldType, Callable[[Any], MetadataValue]] = {
    "number": _number,
    "boolean": _boolean,
    "string": _string,
}
