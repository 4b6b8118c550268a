"""`python -m service predict`: the answers to all queries of a file, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import ValidationError

from service.bulk.formats import Format, format_of
from service.bulk.items_column import ItemsColumn
from service.bulk.memory import LogPlace, find_log, open_memory
from service.bulk.progress import reported
from service.bulk.query_file import OnBadRow, QueryFile, Survey
from service.bulk.run import BulkRun, rows_of_part
from service.bulk.work_folder import Job, WorkFolder
from service.command_line import Interrupted, open_console
from service.core.bundle import manifest
from service.core.errors import InvalidConfig
from service.core.tables.separated import DelimiterOption
from service.core.types import PredictOptions
from service.http.request_models import RequestModels
from service.settings import STATE_VARIABLE, EngineSettings, Limits, load_settings

_Explain = Annotated[bool, Parameter(help="Add metadata and evidence to each keyword; for .jsonl.")]
_Rerank = Annotated[
    bool | None, Parameter(help="Rank the best keywords a second time; default: as the bundle can.")
]
_Delimiter = Annotated[
    DelimiterOption | None,
    Parameter(help="What parts the fields of a .csv file; default: whichever fits its header."),
]
_OnBadRow = Annotated[
    OnBadRow,
    Parameter(
        help="Stop at a row whose query is empty or too long, or whose items are not those of the"
        " bundle and state, before anything is answered, or skip it."
    ),
]
_ItemsColumn = Annotated[
    str | None,
    Parameter(
        help="A column of ids or texts of the items that the row's query attends to, for a bundle"
        " with an item memory. An empty cell: those that are predicted."
    ),
]
_ItemsDelimiter = Annotated[str, Parameter(help="What parts the items of a cell.")]


def predict(
    *,
    bundle: Path,
    input: Path,
    out: Path,
    query: str | None = None,
    state: Annotated[str | None, Parameter(env_var=STATE_VARIABLE)] = None,
    top_k: int = 10,
    depth: int | None = None,
    memorization: float | None = None,
    rerank: _Rerank = None,
    explain: _Explain = False,
    delimiter: _Delimiter = None,
    on_bad_row: _OnBadRow = "stop",
    items_column: _ItemsColumn = None,
    items_delimiter: _ItemsDelimiter = "|",
    config: Path | None = None,
) -> int:
    """Answer every query of a file, as `POST /predict` would, in the order of the file.

    Called again, an interrupted run goes on where it stopped. A service may run meanwhile.

    Parameters
    ----------
    bundle
        The bundle's folder.
    input
        A .csv, .tsv or .jsonl file (each may be followed by .gz), a .parquet file, or a .txt file
        with one query a line.
    out
        The new file: .jsonl (as HTTP answers), .csv (a line a keyword) or .parquet (a row a query).
    query
        The column of the queries; not needed for a .txt file.
    state
        DIR|URL: the state whose labels and clicks count as well; it is only read.
    top_k
        The most keywords for each query.
    depth
        How many of the nearest keys vote; default: the bundle's.
    memorization
        Weight of queries and clicks against labels' texts, 0 to 1; default: the bundle's.
    config
        The TOML file of a service: its limits, threads (default: one a core) and device hold here.
    """
    settings, facts = load_settings(config, {}), manifest.read(bundle)
    base = PredictOptions(top_k=top_k, explain=explain)
    options = facts.options(base, depth=depth, memorization=memorization, rerank=rerank)
    _require_allowed(options, settings.limits)
    form = format_of(out, explain=explain)
    queries = QueryFile(
        input,
        query,
        limits=settings.limits,
        on_bad_row=on_bad_row,
        delimiter=delimiter,
        items=_items_column(items_column, items_delimiter, facts, settings.limits),
    )
    with (folder := WorkFolder(out)).opened():
        run = _opened(folder, queries, options, bundle, state, settings.engine)
        return _answer(run, folder, form)


def _opened(
    folder: WorkFolder,
    queries: QueryFile,
    options: PredictOptions,
    bundle: Path,
    state: str | None,
    settings: EngineSettings,
) -> BulkRun:
    """A new run, or the one that was interrupted; raises what stands in its way."""
    log = None if state is None else find_log(state, bundle)
    _say_if_another_is_served(log, bundle)
    survey = queries.survey()
    job = folder.begin(_job(bundle, log, survey, options))
    loaded = open_memory(bundle, log, settings, until=job.version)
    memory = loaded.memory.view.items
    if queries.items is not None and memory is not None:
        queries = queries.knowing(memory)
        survey = queries.survey()  # once more: only an open memory knows what is unknown
    return BulkRun(
        queries=queries,
        survey=survey,
        job=job,
        options=options,
        loaded=loaded,
        threads=settings.threads,
    )


def _items_column(
    name: str | None, delimiter: str, facts: manifest.Manifest, limits: Limits
) -> ItemsColumn | None:
    """The column of items, if one is named; raises `InvalidConfig` for a bundle without items."""
    if name is None:
        return None
    if facts.items is None:
        raise InvalidConfig(f"--items-column {name}: the bundle {facts.name} has no item memory")
    return ItemsColumn(name=name, limits=limits, delimiter=delimiter)


def _require_allowed(options: PredictOptions, limits: Limits) -> None:
    """Raise `InvalidConfig` for what `POST /predict` would refuse."""
    chosen = {name: getattr(options, name) for name in ("top_k", "depth", "memorization")}
    try:
        RequestModels(limits).predict(queries=["any"], **chosen)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise InvalidConfig(f"--{option} {first['input']}: {first['msg']}") from error


def _job(bundle: Path, log: LogPlace | None, survey: Survey, options: PredictOptions) -> Job:
    return Job(
        bundle=manifest.fingerprint(manifest.read(bundle)),
        state="" if log is None else log.id,
        input=survey.digest,
        top_k=options.top_k,
        depth=options.depth,
        memorization=options.memorization,
        explain=options.explain,
        candidates=options.candidates,
        part_rows=rows_of_part(options.top_k, explain=options.explain),
        version=0 if log is None else log.newest,
    )


def _answer(run: BulkRun, folder: WorkFolder, form: Format) -> int:
    out, before = folder.out, run.rows_done(folder)
    if before:
        _say(f"{out}: goes on after {before:,} of {run.rows:,} queries")
    try:
        with reported(run.rows, "queries", done=before) as report:
            run.answer(folder, form, report)
            folder.finish(run.parts, form)
    except Interrupted as end:
        _say(
            f"{end}: {run.rows_done(folder):,} of {run.rows:,} queries are answered and kept;"
            " the same command goes on there"
        )
        return end.status
    skipped = run.survey.skipped
    left = f", {skipped:,} of them skipped" if skipped else ""
    version = run.loaded.memory.view.version
    _say(f"{out}: {run.rows:,} queries{left}; bundle {run.loaded.name}, version {version}")
    return 0


def _say_if_another_is_served(log: LogPlace | None, bundle: Path) -> None:
    if log is not None and log.served.absolute() != bundle.absolute():
        _say(
            f"note: a service with this state serves {log.served}, to which it was reloaded;"
            f" these answers are those of {bundle}"
        )


def _say(sentence: str) -> None:
    """One line on stderr, whatever the terminal's width."""
    console = open_console(stderr=True)
    console.print(sentence, soft_wrap=True)
