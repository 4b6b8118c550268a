"""Collects uids and texts row by row and objects to what a text must not be."""

from __future__ import annotations

from pathlib import Path

from service.core.errors import InvalidData
from training.datasets.dataset import Texts


class TextRows:
    """The growing texts of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._line_of: dict[str, int] = {}  # in row order: uid -> line, which names the first twin
        self._texts: list[str] = []

    def append(self, *, uid: str, text: str, line: int) -> None:
        """Add a row; raises `InvalidData` for an empty uid or text and for a repeated uid."""
        if not uid.strip():
            raise InvalidData(self.path, "is empty", line=line, field="uid")
        if not text.strip():
            raise InvalidData(self.path, "the text is empty", line=line, field="title")
        first = self._line_of.setdefault(uid, line)
        if first != line:
            message = f"{uid!r} was given to line {first} already"
            raise InvalidData(self.path, message, line=line, field="uid")
        self._texts.append(text)

    def texts(self) -> Texts:
        """Return all rows; raises `InvalidData` where there is none."""
        if not self._texts:
            raise InvalidData(self.path, "holds no rows")
        return Texts(uids=tuple(self._line_of), texts=tuple(self._texts))
