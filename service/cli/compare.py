"""`python -m service compare`: what changes between two bundles, as a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

from cyclopts import Parameter

from service.bulk.progress import reported
from service.command_line import open_console
from service.comparison.answers import rankings_of
from service.comparison.comparison import compare as compare_rankings
from service.comparison.page import page, summary
from service.comparison.query_labels import read_queries
from service.core.bundle import manifest
from service.core.errors import InvalidConfig, InvalidData
from service.core.files.atomic import refuse_existing, write_file
from service.core.tables.separated import DelimiterOption, delimiter_character
from service.settings import Limits, load_settings

LEAST_TOP_K = 5  # for P@5


def compare(
    *,
    bundle: list[Path],
    queries: Path,
    out: Path,
    query: str | None = None,
    labels: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    delimiter: DelimiterOption | None = None,
    top_k: int = 10,
) -> int:
    """Compare the answers of two bundles to the same queries.

    Each bundle answers with its own depth and memorization. The page shows how far the rankings
    agree, which queries change most, and, where labels are known, which bundle is better and
    whether the difference may be chance.

    Parameters
    ----------
    bundle
        A bundle's folder; given twice, the present one (A) first.
    queries
        A .csv, .tsv or .jsonl file (each may be followed by .gz), a .parquet file, or a .txt file
        with one query a line.
    out
        The new HTML page; it loads nothing.
    query
        The column of the queries; not needed for a .txt file.
    labels
        Columns of known labels: an id or a text, or a list of them. Rows of one query add up.
    delimiter
        What parts the fields of a .csv file; default: whichever fits its header line.
    top_k
        How many keywords of each are compared, at least 5.
    """
    if len(bundle) != 2:
        raise InvalidConfig(f"--bundle must be given twice, not {len(bundle)} times")
    settings = load_settings(None, {})
    _require_allowed(top_k, settings.limits)
    _require_writable(out)
    names = _names(bundle)
    known = read_queries(
        queries,
        query=query,
        labels=labels,
        limits=settings.limits,
        delimiter=delimiter_character(delimiter),
    )
    with reported(2 * len(known), "answers") as report:
        left, right = (
            rankings_of(folder, list(known), k=top_k, settings=settings.engine, progress=report)
            for folder in bundle
        )
    comparison = compare_rankings(names, left, right, known, k=top_k)
    with _as_unwritable(out):
        write_file(out, page(comparison).encode())
    console = open_console()
    for line in (*summary(comparison), f"{out}: the page"):
        console.out(line, highlight=False)
    return 0


def _require_allowed(top_k: int, limits: Limits) -> None:
    if not LEAST_TOP_K <= top_k <= limits.top_k:
        raise InvalidConfig(f"--top-k must be between {LEAST_TOP_K} and {limits.top_k:,}")


def _require_writable(out: Path) -> None:
    """Raise `InvalidData` now for what would stop the page in the end."""
    refuse_existing(out)
    with _as_unwritable(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out.parent):
            pass


@contextmanager
def _as_unwritable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidData(out, f"cannot be written: {error.strerror or error}") from error


def _names(bundles: list[Path]) -> tuple[str, str]:
    """The bundles' names, or their folders where the names are equal; both must be bundles."""
    left, right = (manifest.read(folder).name for folder in bundles)
    return (left, right) if left != right else (str(bundles[0]), str(bundles[1]))
