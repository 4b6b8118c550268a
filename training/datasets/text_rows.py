"""Uids and texts, collected row by row and checked: none may be empty, no uid repeated."""

from __future__ import annotations

from pathlib import Path

from service.core.errors import InvalidData
from training.datasets.dataset import Texts


class TextRows:
    """The texts of one file, while it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._line_of: dict[str, int] = {}  # uid -> line, in row order
        self._texts: list[str] = []

    def append(self, *, uid: str, text: str, line: int) -> None:
        """Add a row; raises `InvalidData` for an empty uid or text and for a repeated uid."""
        if not uid.strip():
            raise InvalidData(self.path, "is empty", line=line, field="uid")
        if not text.strip():
            raise InvalidData(self.path, "the text is empty", line=line, field="title")
        first = self._line_of.setdefault(uid, line)
        if first != line:
            message = f"{uid!r} is already the uid of line {first}"
            raise InvalidData(self.path, message, line=line, field="uid")
        self._texts.append(text)

    def texts(self, *, may_be_empty: bool = False) -> Texts:
        """Return all rows; raises `InvalidData` if there are none, unless that is allowed."""
        if not self._texts and not may_be_empty:
            raise InvalidData(self.path, "holds no rows")
        return Texts(uids=tuple(self._line_of), texts=tuple(self._texts))
