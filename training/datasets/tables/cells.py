"""What a cell of a table must hold; each function raises `ValueError` with what is wrong."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

LATEST = 1e11  # seconds; above it, a number is rather milliseconds


def text(value: Any) -> str:
    """A text with normal whitespace, not empty."""
    if not isinstance(value, str | None):
        raise ValueError(f"must be a text, not {type(value).__name__}")
    normal = " ".join((value or "").split())
    if not normal:
        raise ValueError("is empty")
    return normal


def label_id(value: Any) -> str:
    """A text, or a whole number as a text."""
    return text(str(value) if type(value) is int else value)


def items(value: Any, *, delimiter: str) -> tuple[str, ...]:
    """Texts or whole numbers, parted by `delimiter` or as a list; an empty cell has none."""
    if isinstance(value, str):
        parts: list[Any] = value.split(delimiter)
    elif isinstance(value, list):
        parts = value
    else:
        parts = [value]
    return tuple(label_id(part) for part in parts if not _is_blank(part))


def _is_blank(part: Any) -> bool:
    return part is None or (isinstance(part, str) and not part.strip())


def weight(value: Any) -> float:
    """A positive finite number."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{value!r} is not a positive finite number")
    return number


def time(value: Any) -> float:
    """Unix seconds, given as such or in ISO 8601; without a time zone it is UTC."""
    try:
        seconds = _seconds(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < LATEST:
        raise ValueError(f"{value!r} is no time: neither Unix seconds nor ISO 8601")
    return seconds


def _seconds(value: Any) -> float:
    if isinstance(value, bool):
        return math.nan
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, str):
        value = value.strip().removesuffix(" UTC")
        try:
            return float(value)
        except ValueError:
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value)
