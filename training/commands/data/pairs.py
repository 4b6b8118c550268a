"""`python -m training data pairs`: a table of (query, keyword) rows becomes a data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from service.command_line import open_console
from service.core.files.atomic import refuse_existing, refuse_unwritable, write_file
from service.core.files.bad_rows import Rejects, stop
from service.core.tables.columns import delimiter_of
from service.core.tables.separated import DELIMITERS, DelimiterOption, delimiter_character
from training.commands.data.writing import Out, size_line, write
from training.commands.options import FLAT
from training.datasets.pairs import PairOptions, TableFacts, from_table
from training.datasets.tables.rows import Columns

SHOWN = 10  # bad rows that are printed; the file has all


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the table's file is read.

    Attributes
    ----------
    delimiter
        What parts the fields of a .csv file. Default: whichever fits its header line.
    on_bad_row
        Stop at the first bad row, or skip bad rows and list them in OUT.rejects.csv.
    """

    delimiter: DelimiterOption | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"


def pairs(
    *,
    input: Annotated[
        Path, Parameter(help=".csv, .tsv or .jsonl (each also .gz), or .parquet; tsv has no quotes")
    ],
    out: Out,
    columns: Annotated[Columns, FLAT],
    reading: Annotated[Reading, FLAT] = Reading(),
    options: Annotated[PairOptions, FLAT] = PairOptions(),  # noqa: B008
) -> None:
    """Turn a table of (query, keyword) rows into a data set.

    Equal queries become one row, equal keywords one label. A hash of the text decides whether a
    query goes to train or to test, so rows that are added later move no other query; with --time,
    the newest queries go to test.
    """
    refuse_existing(out)
    refuse_unwritable(out)
    rejects = Rejects() if reading.on_bad_row == "skip" else None
    delimiter = delimiter_of(input, columns.names(), given=delimiter_character(reading.delimiter))
    table = from_table(
        input,
        columns,
        options,
        name=out.resolve().name,
        delimiter=delimiter,
        on_bad=stop if rejects is None else rejects,
    )
    write(table.dataset, out)
    parted = f", delimiter: {DELIMITERS[delimiter]}" if delimiter not in (None, ",") else ""
    lines = [f"{input}: {table.facts.rows:,} rows read{parted}", *_done(table.facts, options)]
    lines.append(size_line(table.dataset, out))
    if rejects is not None:
        write_file(rejects_file(out), rejects.as_csv())
        lines[:0] = [f"rejected: {input}:{row}" for row in rejects.rows[:SHOWN]]
        lines.append(f"{len(rejects):,} rows rejected: {rejects_file(out)}")
    console = open_console()
    for line in lines:
        console.print(line, soft_wrap=True)


def rejects_file(out: Path) -> Path:
    """The list of the bad rows of the data set `out`, beside its folder."""
    return out.resolve().with_name(f"{out.resolve().name}.rejects.csv")


def _done(facts: TableFacts, options: PairOptions) -> Iterator[str]:
    """A sentence for each thing that was done to the rows."""
    if facts.merged:
        yield f"{facts.merged:,} rows repeat a pair: their weights are added"
    if facts.exact:
        done = "positives" if options.keep_exact else "filtered (--keep-exact: positives)"
        yield f"{facts.exact:,} pairs have a keyword that equals the query: {done}"
    if facts.period is not None:
        oldest, newest = (datetime.fromtimestamp(time, UTC) for time in facts.period)
        newest_part = "; the newest queries are for test" if options.test_fraction else ""
        yield f"rows from {oldest:%Y-%m-%d} to {newest:%Y-%m-%d}{newest_part}"
    if facts.test_only:
        yield f"{facts.test_only:,} labels occur only in test"
