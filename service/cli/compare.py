"""`keymatch compare`: what changes between two bundles, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.bulk.progress import reported
from service.command_line import say
from service.comparison.comparison import compare as compare_rankings
from service.comparison.comparison import rankings_of, read_queries
from service.comparison.page import page, summary
from service.core.bundle import manifest
from service.core.errors import InvalidConfig
from service.core.files.atomic import refuse_existing, refuse_unwritable, write_file
from service.core.tables.separated import DelimiterOption, delimiter_character
from service.settings import load_settings

LEAST_TOP_K = 5  # for P@5


def compare(
    *,
    bundle: list[Path],
    input: Path,
    out: Path,
    query: str | None = None,
    label: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    delimiter: DelimiterOption | None = None,
    top_k: int = 10,
) -> int:
    """Compare the answers of two bundles to the same queries.

    Each bundle answers with its own depth and memorization. The page shows how far the rankings
    agree and which queries change most. If labels are known, it also shows which bundle is better
    and whether the difference may be chance.

    Parameters
    ----------
    bundle
        A bundle's folder; given twice, the present one (A) first.
    input
        A .csv, .tsv or .jsonl file (each may be followed by .gz), a .parquet file, or a .txt file
        with one query per line.
    out
        The HTML page to write; it loads nothing from elsewhere.
    query
        The column of the queries; not needed for a .txt file.
    label
        Columns of known labels: an id or a text, or a list of them. Rows of one query add up.
    delimiter
        What separates the fields of a .csv file; default: whichever fits its header line.
    top_k
        How many keywords per query are compared, at least 5.
    """
    if len(bundle) != 2:
        raise InvalidConfig(f"--bundle must be given twice, not {len(bundle)} times")
    settings = load_settings(None, {"workers": 1})
    if not LEAST_TOP_K <= top_k <= settings.limits.top_k:
        allowed = f"between {LEAST_TOP_K} and {settings.limits.top_k:,}"
        raise InvalidConfig(f"--top-k must be {allowed}")
    refuse_existing(out)  # before the long work
    refuse_unwritable(out.absolute().parent)
    left_name, right_name = (manifest.read(folder).name for folder in bundle)
    names = (left_name, right_name)
    if left_name == right_name:
        names = (str(bundle[0]), str(bundle[1]))
    known = read_queries(
        input,
        query=query,
        labels=label,
        limits=settings.limits,
        delimiter=delimiter_character(delimiter),
    )
    with reported(2 * len(known), "answers") as report:
        left, right = (
            rankings_of(folder, list(known), k=top_k, settings=settings.engine, progress=report)
            for folder in bundle
        )
    comparison = compare_rankings(names, left, right, known, k=top_k)
    write_file(out, page(comparison).encode())
    say(*summary(comparison), f"{out}: the page")
    return 0
