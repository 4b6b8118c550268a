"""Unlabelled texts, such as the queries of a log: the student learns the teacher's vectors of them.

A data set's own texts are few beside what users will ask; a student that saw only those gives the
teacher's vectors of other texts less exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from service.core.errors import InvalidData


def read_texts(path: Path) -> tuple[str, ...]:
    """The texts of a UTF-8 file, one a line; empty lines and repetitions are left out.

    Raises `InvalidData` for a file that cannot be read, or that has no text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidData(path, "is not UTF-8") from error
    texts = tuple(dict.fromkeys(text for line in lines if (text := line.strip())))
    if not texts:
        raise InvalidData(path, "has no text: one is expected on each line")
    return texts


def without(texts: Iterable[str], known: Sequence[Sequence[str]]) -> list[str]:
    """The texts that are in none of the `known` lists, which are learned anyway."""
    present = {text for part in known for text in part}
    return [text for text in texts if text not in present]


def text_digest(texts: Iterable[str]) -> str:
    """SHA-256 of the texts in their order."""
    content = hashlib.sha256()
    for text in texts:
        content.update(text.encode() + b"\0")
    return content.hexdigest()
