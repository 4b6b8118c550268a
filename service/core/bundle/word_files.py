"""The files of a bundle's lexical index, `words/*`: which rows contain a word.

| file                | content                                                               |
|---------------------|-----------------------------------------------------------------------|
| `words/words.*`     | the W distinct words of all rows' texts, ascending, see `text_store`  |
| `words/indptr.npy`, | int64 [W + 1], int32 [P]: word w is in the rows                       |
| `words/rows.npy`    | rows[indptr[w]: indptr[w + 1]], ascending                             |
| `words/bigrams.npy` | int64 [G], ascending: the bigrams of words, see `word_index`          |
| `words/bigram_*.npy`| int64 [G + 1] and int32 [E]: the words that contain each bigram       |
| `words/posted.npy`  | only in snapshots: int64, ascending, the rows that were posted        |

The first five follow from the texts; making them takes seconds per million rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from service.core.errors import BundleAltered
from service.core.files import text_store
from service.core.files.arrays import mapped, require_ascending, require_offsets, require_within
from service.core.files.text_store import TextStore
from service.core.lexical.word_index import FrozenWords, index_texts
from service.core.types import Rows

WORDS, POSTED = "words/words", "words/posted.npy"
ARRAYS: Mapping[str, tuple[str, type[np.generic]]] = {
    "indptr": ("words/indptr.npy", np.int64),
    "postings": ("words/rows.npy", np.int32),
    "bigrams": ("words/bigrams.npy", np.int64),
    "bigram_indptr": ("words/bigram_indptr.npy", np.int64),
    "bigram_words": ("words/bigram_words.npy", np.int32),
}
FILES = (*text_store.files(WORDS), *(name for name, _ in ARRAYS.values()))


def write(texts: Iterable[str], folder: Path, *, posted: Rows | None = None) -> None:
    """Write the lexical index of the texts of all rows, in order, and which rows were posted."""
    words = index_texts(texts)
    text_store.write(folder / WORDS, words.words)
    for field, (name, kind) in ARRAYS.items():
        np.save(folder / name, getattr(words, field).astype(kind))
    if posted is not None and len(posted):
        np.save(folder / POSTED, posted.astype(np.int64))


def read(folder: Path, *, rows: int, verify: bool) -> FrozenWords:
    """Map the lexical index of `rows` rows; `verify` checks the numbers that readers rely on.

    Raises `BundleAltered`, naming the file.
    """
    arrays = {field: mapped(folder / name, kind) for field, (name, kind) in ARRAYS.items()}
    words = FrozenWords(words=TextStore(folder / WORDS), **arrays)
    if verify:
        _check(words, folder, rows=rows)
    return words


def verify_order(words: FrozenWords, folder: Path) -> None:
    """Raise `BundleAltered` unless the words ascend; reads every word."""
    before = ""
    for word in words.words:
        if word <= before:
            raise BundleAltered(f"{folder / WORDS} does not hold distinct words in order")
        before = word


def _check(words: FrozenWords, folder: Path, *, rows: int) -> None:
    paths = {field: folder / name for field, (name, _) in ARRAYS.items()}
    for offsets, entries, count in (
        ("indptr", "postings", len(words.words)),
        ("bigram_indptr", "bigram_words", len(words.bigrams)),
    ):
        numbers = getattr(words, offsets)
        if len(numbers) != count + 1:
            raise BundleAltered(f"{paths[offsets]} has {len(numbers)} numbers, not {count + 1}")
        require_offsets(paths[offsets], numbers, end=len(getattr(words, entries)))
    require_within(paths["postings"], words.postings, 0, rows)
    require_within(paths["bigram_words"], words.bigram_words, 0, len(words.words))
    require_ascending(paths["bigrams"], words.bigrams, strictly=True)
    assert isinstance(words.words, TextStore)
    words.words.verify()
