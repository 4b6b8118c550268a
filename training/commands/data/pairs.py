"""`keymatch data pairs`: a table of (query, keyword) rows becomes a data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from service.command_line import open_console
from service.core.errors import InvalidData
from service.core.files.atomic import refuse_unusable, write_file
from service.core.files.lines import Rejects
from service.core.tables.columns import delimiter_of
from service.core.tables.separated import DELIMITERS, DelimiterOption, delimiter_character
from training.commands.data.sample import Out, write
from training.commands.options import FLAT
from training.datasets.pairs import PairOptions, TableFacts, from_table
from training.datasets.tables.rows import Columns

SHOWN = 10  # bad rows that are printed; the rejects file has all


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the table's file is read.

    Attributes
    ----------
    delimiter
        The character between the fields of a .csv file. Default: whichever fits its header line.
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

    Queries that differ only in case, spaces and Unicode form become one row, and such keywords one
    label. A hash of its text decides whether a query goes to train or to test, so rows that are
    added later move no other query. With --time, the newest queries go to test.
    """
    refuse_unusable(out)
    rejects = Rejects() if reading.on_bad_row == "skip" else None
    delimiter = delimiter_of(input, columns.names(), given=delimiter_character(reading.delimiter))
    table = from_table(
        input,
        columns,
        options,
        name=out.resolve().name,
        delimiter=delimiter,
        on_bad=_stop if rejects is None else rejects,
    )
    size = write(table.dataset, out)
    parted = f", delimiter: {DELIMITERS[delimiter]}" if delimiter not in (None, ",") else ""
    lines = [f"{input}: {table.facts.rows:,} rows read{parted}", *_done(table.facts, options)]
    lines.append(size)
    if rejects is not None:
        write_file(rejects_file(out), rejects.as_csv())
        lines[:0] = [f"rejected: {input}:{row}" for row in rejects.rows[:SHOWN]]
        lines.append(f"{len(rejects):,} rows rejected: {rejects_file(out)}")
    console = open_console()
    for line in lines:
        console.print(line, soft_wrap=True)


def _stop(error: InvalidData) -> None:
    """Raise the error of the first bad row, with advice added."""
    advice = "correct the row, or pass --on-bad-row skip to leave out all such rows and list them"
    raise InvalidData(error.path, f"{error.reason}; {advice}", line=error.line, field=error.field)


def rejects_file(out: Path) -> Path:
    """Return the path of the list of bad rows, next to the folder of the data set `out`."""
    return out.resolve().with_name(f"{out.resolve().name}.rejects.csv")


def _done(facts: TableFacts, options: PairOptions) -> Iterator[str]:
    """Yield a sentence for each change that was made to the rows."""
    if facts.unweighted:
        yield f"{facts.unweighted:,} rows have an empty weight: they weigh 1"
    if facts.folded_queries or facts.folded_labels:
        apart = " (--keep-case keeps such queries apart)" if facts.folded_queries else ""
        yield (
            f"{facts.folded_queries:,} queries and {facts.folded_labels:,} keywords are other"
            f" spellings (case, spaces, Unicode form) of an earlier one, and joined to it{apart}"
        )
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
