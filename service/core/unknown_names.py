"""The message for an unknown name: it lists the known names and the most similar one."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

COMPARED_CHARACTERS = 100  # a longer name is no misspelling, and comparing takes long


def is_unknown(name: str, known: Sequence[str]) -> str:
    """Return the end of a sentence that begins with `name`."""
    sentence = f"is unknown; known are {', '.join(known)}"
    meant = get_close_matches(name, known, 1) if len(name) <= COMPARED_CHARACTERS else []
    return sentence + "".join(f"; did you mean {other}?" for other in meant)
