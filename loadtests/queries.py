"""Queries for a benchmark: the texts of a bundle or of a file, once each or Zipf-distributed."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson

from service.core.bundle import manifest
from service.core.errors import InvalidInput
from service.core.files.text_store import TextStore

_MAX_CHARACTERS = 2_048  # the service refuses longer queries
_DRAWN_AT_ONCE = 4_096


def read_queries(bundle: Path, file: Path | None = None) -> list[str]:
    """Return the distinct texts of `file`, or of the bundle's instances and labels.

    A file has one query per line. If its name ends in `.json`, `.jsonl` or `.json.gz`, each line is
    an LF-XMC document, whose `title` is the query. Raises `InvalidInput` if there is no query, and
    `BundleError` if the folder is no bundle.
    """
    if file is not None:
        texts: Iterator[str] = _from_file(file)
    else:
        manifest.read(bundle)  # its error names what is missing
        texts = (
            text for name in ("instances", "labels") for text in TextStore(bundle / name / "texts")
        )
    queries = list(dict.fromkeys(text.strip()[:_MAX_CHARACTERS] for text in texts))
    queries = [query for query in queries if query]
    if not queries:
        raise InvalidInput(f"{file or bundle} holds no query: all its texts are empty")
    return queries


def distinct(queries: Sequence[str], *, seed: int) -> Iterator[str]:
    """Yield every query once, in random order; then repeat the same order without end."""
    order = np.random.default_rng(seed).permutation(len(queries))
    while True:
        yield from (queries[index] for index in order)


def zipf(queries: Sequence[str], *, seed: int) -> Iterator[str]:
    """Yield random queries without end: rank r with probability proportional to 1 / r.

    Measured exponents of web queries lie between 0.8 and 1.1. Ranks are assigned at random and
    depend on `seed` only.
    """
    random = np.random.default_rng(seed)
    ranked = random.permutation(len(queries))
    cumulative = np.cumsum(1 / np.arange(1, len(queries) + 1))
    while True:
        drawn = np.searchsorted(cumulative, random.random(_DRAWN_AT_ONCE) * cumulative[-1])
        yield from (queries[ranked[rank]] for rank in drawn)


def _from_file(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        if {".json", ".jsonl"} & set(path.suffixes):
            yield from (orjson.loads(line)["title"] for line in lines)
        else:
            yield from lines
