"""`keymatch data pairs`: a table of (query, keyword) rows becomes a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from service.command_line import open_console
from service.core.errors import InvalidData, InvalidInput
from service.core.files.atomic import refuse_unusable, write_file
from service.core.files.lines import Rejects
from service.core.memory.decay import MOST_HALF_LIVES
from service.core.tables.columns import delimiter_of, parts_of, require_alike
from service.core.tables.separated import DELIMITERS, DelimiterOption, delimiter_character
from training.commands.data.sample import Out, write
from training.commands.options import FLAT, MANY
from training.datasets.label_fields import field_types
from training.datasets.pairs import CatalogueFacts, PairOptions, TableFacts, from_table
from training.datasets.tables.catalogue import NO_CATALOGUE, Catalogue, read_catalogue
from training.datasets.tables.rows import Columns
from training.datasets.tables.typed_columns import parse_field_types

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


@dataclass(frozen=True, kw_only=True)
class CatalogueColumns:
    """A table of labels, and its columns.

    Attributes
    ----------
    catalogue
        A table of labels, in the formats of --input. All its labels are in the data set, with its
        ids, texts, aliases and fields, also those that no row names.
    catalogue_text
        The catalogue's column of texts.
    catalogue_id
        The catalogue's column of ids. --label may then name labels by id or by text. Default: a
        label's text in NFKC, case-folded, is its id.
    catalogue_alias
        A column of the catalogue with further texts of a label, such as product codes; may be given
        several times, or with several columns. --metadata-delimiter separates those of one cell.
        .jsonl and .parquet may have lists.
    label_field
        A column of the catalogue that labels get as metadata, which filters of /predict read; may
        be given several times, or with several columns. In .csv and .tsv, a column of numbers
        alone has numbers, one of true and false alone has booleans, any other has strings. .jsonl
        and .parquet keep their types, and may have lists of strings. Empty cells are absent.
    field_type
        FIELD=number, FIELD=boolean or FIELD=string: the type of a field, whatever its column holds.
        For numbers and booleans, cells such as n/a and NaN are absent, and any other cell that is
        none is an error. Codes whose zeros count, such as versions, may need string.
    """

    catalogue: Path | None = None
    catalogue_text: str | None = None
    catalogue_id: str | None = None
    catalogue_alias: Annotated[tuple[str, ...], MANY] = ()
    label_field: Annotated[tuple[str, ...], MANY] = ()
    field_type: Annotated[tuple[str, ...], MANY] = ()

    def read(self, *, delimiter: str) -> Catalogue:
        """Read the catalogue, with aliases that `delimiter` separates.

        Raises `InvalidInput` for options that go only with others.
        """
        if self.catalogue is None:
            for option, given in vars(self).items():
                if given:
                    raise InvalidInput(f"--{option.replace('_', '-')} goes with --catalogue")
            return NO_CATALOGUE
        if self.catalogue_text is None:
            raise InvalidInput("--catalogue needs --catalogue-text, its column of texts")
        return read_catalogue(
            self.catalogue,
            text=self.catalogue_text,
            label_id=self.catalogue_id,
            fields=self.label_field,
            types=parse_field_types(self.field_type, self.label_field),
            aliases=self.catalogue_alias,
            delimiter=delimiter,
        )


def pairs(
    *,
    input: Annotated[
        tuple[Path, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help=".csv, .tsv or .jsonl (each also .gz), or .parquet; tsv has no quotes. Several"
            " files, a folder, or a quoted pattern such as 'logs/*.parquet' are read as one table",
        ),
    ],
    out: Out,
    columns: Annotated[Columns, FLAT],
    catalogue: Annotated[CatalogueColumns, FLAT] = CatalogueColumns(),
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
    parts, whole = parts_of(input), _named(input)
    delimiters = [
        delimiter_of(part, columns.names(), given=delimiter_character(reading.delimiter))
        for part in parts
    ]
    if len(parts) > 1:
        require_alike(parts, columns.names(), extra="training")
    known = catalogue.read(delimiter=columns.metadata_delimiter)
    table = from_table(
        whole,
        columns,
        options,
        parts=parts,
        name=out.resolve().name,
        delimiter=delimiter_character(reading.delimiter),
        on_bad=_stop if rejects is None else rejects,
        catalogue=known,
    )
    size = write(table.dataset, out)
    others = dict.fromkeys(DELIMITERS[one] for one in delimiters if one not in (None, ","))
    parted = f", delimiter: {', '.join(others)}" if others else ""
    files = f" from {len(parts):,} files" if len(parts) > 1 else ""
    lines = [f"{whole}: {table.facts.rows:,} rows read{files}{parted}"]
    lines += _done(table.facts, options)
    if table.facts.catalogue is not None:
        lines += _agreement(table.facts.catalogue, options, whole, catalogue.catalogue)
        if known.fields is not None:
            lines.append(f"{catalogue.catalogue}: fields: {', '.join(field_types(known.fields))}")
        lines += known.notes
    lines.append(size)
    if rejects is not None:
        write_file(rejects_file(out), rejects.as_csv(files=len(parts) > 1))
        bad = zip(rejects.files[:SHOWN], rejects.rows, strict=False)
        lines[:0] = [f"rejected: {file}:{row}" for file, row in bad]
        lines.append(f"{len(rejects):,} rows rejected: {rejects_file(out)}")
    console = open_console()
    for line in lines:
        console.print(line, soft_wrap=True)


def _named(input: Sequence[Path]) -> Path:
    """Return what messages and the data set call the table."""
    first, *others = input
    return Path(f"{first} and {len(others)} more") if others else first


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
    if facts.faded:
        yield (
            f"{facts.faded:,} rows are older than {MOST_HALF_LIVES:g} half-lives: each keeps a"
            " millionth of its weight"
        )
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
        has_test = options.test_fraction and not facts.unsplit
        newest_part = "; the newest queries are for test" if has_test else ""
        yield f"rows from {oldest:%Y-%m-%d} to {newest:%Y-%m-%d}{newest_part}"
    if facts.unsplit:
        yield (
            "the queries are too few for a test split: all are for training, and nothing can be"
            " measured on this data set"
        )
    if facts.test_only:
        yield f"{facts.test_only:,} labels occur only in test"


def _agreement(
    facts: CatalogueFacts, options: PairOptions, input: Path, catalogue: Path | None
) -> Iterator[str]:
    """Yield sentences about labels that only one of both tables has."""
    yield f"{catalogue}: {facts.labels:,} labels, {facts.unnamed:,} of them in no row of {input}"
    if facts.unknown_rows:
        kept = "kept, without fields (--unknown-label drop or refuse: not)"
        yield (
            f"{facts.unknown_rows:,} rows name {facts.unknown_labels:,} labels that the catalogue"
            f" does not have: they are {kept if options.unknown_label == 'keep' else 'left out'}"
        )
    if facts.retitled:
        yield (
            f"{facts.retitled:,} rows have another text than the catalogue for the same id: the"
            " catalogue's text is used"
        )
