"""What a cell of texts must hold; each function raises `ValueError` with what is wrong."""

from __future__ import annotations

from typing import Any


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
