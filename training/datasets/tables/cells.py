"""What a cell of numbers must hold; each function raises `ValueError` with what is wrong.

Cells of texts are those of `core.tables.text_cells`.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

LATEST = 1e11  # seconds; above it, a number is rather milliseconds


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
