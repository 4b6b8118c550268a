"""`keymatch compare`: what changes between two bundles, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.bulk.progress import reported
from service.command_line import DEFAULT_CACHE, CacheOption, say
from service.comparison.comparison import compare as compare_rankings
from service.comparison.comparison import (
    field_values,
    rankings_of,
    read_clicks,
    read_queries,
    read_slices,
    rows_among,
)
from service.comparison.page import as_json, page, summary
from service.core.bundle import manifest
from service.core.bundle.object_store import local_bundle
from service.core.errors import InvalidConfig
from service.core.files.atomic import refuse_existing, refuse_unwritable, write_file
from service.core.tables.separated import DelimiterOption, delimiter_character
from service.settings import load_settings

LEAST_TOP_K = 5  # for P@5
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())]


def compare(
    *,
    bundle: list[str],
    input: Path,
    out: Path,
    query: str | None = None,
    label: Names = (),
    weight: str | None = None,
    slice: Names = (),
    slice_field: Names = (),
    delimiter: DelimiterOption | None = None,
    top_k: int = 10,
    json: Path | None = None,
    cache: CacheOption = DEFAULT_CACHE,
) -> int:
    """Compare the answers of two bundles to the same queries.

    Each bundle answers with its own depth and memorization. The page shows how far the rankings
    agree and which queries change most. If labels are known, it also shows which bundle is better
    and whether the difference may be chance.

    Parameters
    ----------
    bundle
        A bundle's folder or URL; given twice, the present one (A) first.
    input
        A .csv, .tsv or .jsonl file (each may be followed by .gz), a .parquet file, or a .txt file
        with one query per line.
    out
        The HTML page to write; it loads nothing from elsewhere.
    query
        The column of the queries; not needed for a .txt file.
    label
        Columns of known labels: an id or a text, or a list of them. Rows of one query add up.
    weight
        The column of a row's weight, such as its clicks, for known queries; default: each row is 1.
    slice
        Columns of values, such as a category or a tenant: the same figures for the queries of each
        value. A cell holds a text, a number, a boolean, or a list of them.
    slice_field
        Metadata fields of labels, such as a brand: which values gain or lose keywords and recall.
    delimiter
        What separates the fields of a .csv file; default: whichever fits its header line.
    top_k
        How many keywords per query are compared, at least 5.
    json
        Also write the whole comparison to this file; A is `left`, B is `right`.
    cache
        Folder for copies of bundles that URLs name.
    """
    if len(bundle) != 2:
        raise InvalidConfig(f"--bundle must be given twice, not {len(bundle)} times")
    settings = load_settings(None, {"workers": 1})
    if not LEAST_TOP_K <= top_k <= settings.limits.top_k:
        allowed = f"between {LEAST_TOP_K} and {settings.limits.top_k:,}"
        raise InvalidConfig(f"--top-k must be {allowed}")
    refuse_existing(out)  # before the long work
    for written in (out, json) if json else (out,):
        refuse_unwritable(written.absolute().parent)
    folders = [local_bundle(place, cache) for place in bundle]
    left_name, right_name = (manifest.read(folder).name for folder in folders)
    names = (left_name, right_name)
    if left_name == right_name:
        names = (bundle[0], bundle[1])
    character = delimiter_character(delimiter)
    known = read_queries(
        input, query=query, labels=label, limits=settings.limits, delimiter=character
    )
    clicks = read_clicks(
        input,
        query=query,
        labels=label,
        weight=weight,
        limits=settings.limits,
        delimiter=character,
    )
    slices = read_slices(
        input, query=query, columns=slice, limits=settings.limits, delimiter=character
    )
    label_slices = field_values(folders, slice_field, known)
    with reported(2 * len(known), "answers") as report:
        left, right = (
            rankings_of(folder, list(known), k=top_k, settings=settings.engine, progress=report)
            for folder in folders
        )
    ours, theirs = (rows_among(folder, list(known)) for folder in folders)
    comparison = compare_rankings(
        names,
        left,
        right,
        known,
        k=top_k,
        slices=slices,
        label_slices=label_slices,
        rows=(ours, theirs),
        clicks=clicks,
    )
    write_file(out, page(comparison).encode())
    if json is not None:
        write_file(json, as_json(comparison))
    say(*summary(comparison), f"{out}: the page")
    return 0
