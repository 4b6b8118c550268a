"""`keymatch predict`: the answers to all queries of a file, without a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, make_dataclass
from functools import partial
from pathlib import Path
from time import time
from typing import Annotated, Any, get_args, get_origin

from cyclopts import Parameter
from pydantic import ValidationError

from service.bulk.cluster import Memory, answer_on, require_answerable
from service.bulk.formats import Format, format_of
from service.bulk.memory import LogPlace, find_log, open_memory
from service.bulk.progress import Report, reported
from service.bulk.query_file import ItemsColumn, OnBadRow, QueryFile
from service.bulk.run import BulkRun, Job, WorkFolder, rows_of_part, stored_options
from service.command_line import DEFAULT_CACHE, STATE_VARIABLE, CacheOption, Interrupted, say
from service.core.bundle import manifest
from service.core.bundle.object_store import local_bundle
from service.core.errors import InvalidConfig, InvalidInput
from service.core.label_filter import LabelFilter, parse_json
from service.core.options import BULK_OPTIONS, Option, PredictOptions, complete_options
from service.core.processes.ray_cluster import joined
from service.core.tables.separated import DelimiterOption
from service.core.wrong_values import what_is_wrong
from service.http.bodies import limited
from service.http.predictions import PredictRequest
from service.settings import EngineSettings, Limits, load_settings

_say = partial(say, stderr=True)


def _command_option(option: Option) -> tuple[str, Any, Any]:
    """Return an option as a field of `Asked`."""
    kind = str if option.name == "filter" else option.kind  # a filter is given as JSON
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind  # bounds are checked later
    kind = kind | None if option.default is None else kind
    said = f"{option.description.format_map(asdict(Limits()))} {option.command}".strip()
    return option.name, Annotated[kind, Parameter(help=said)], option.default


# The options that the command has, as `complete_options` takes them.
Asked: Any = make_dataclass(
    "Asked",
    [_command_option(option) for option in BULK_OPTIONS],
    frozen=True,
    kw_only=True,
    namespace={"__module__": __name__},  # cyclopts takes `types`, the default, for builtins
)
DEFAULTS = Asked()


def predict(
    *,
    bundle: str,
    input: Path,
    out: Path,
    query: str | None = None,
    state: Annotated[str | None, Parameter(env_var=STATE_VARIABLE)] = None,
    asked: Annotated[Asked, Parameter(name="*")] = DEFAULTS,
    escape_formulas: Annotated[bool, Parameter(negative=())] = False,
    delimiter: DelimiterOption | None = None,
    on_bad_row: OnBadRow = "stop",
    items_column: str | None = None,
    items_delimiter: str = "|",
    config: Path | None = None,
    cache: CacheOption = DEFAULT_CACHE,
    cluster: str | None = None,
) -> int:
    """Answer every query of a file, as `POST /predict` would, in the order of the file.

    Call it again to continue an interrupted run. A service may run meanwhile.

    Parameters
    ----------
    bundle
        The bundle's folder or URL.
    input
        A .csv, .tsv or .jsonl file (each may be followed by .gz), a .parquet file, or a .txt file
        with one query per line.
    out
        The new file: .jsonl (as HTTP), .csv (a line per keyword) or .parquet (a row per query).
    query
        The column of the queries; not needed for a .txt file.
    state
        DIR|URL: the state whose labels and clicks are used, too; it is only read.
    escape_formulas
        Put an apostrophe before each text of a .csv file that begins with = + - @, a tab or a
        carriage return, so that a spreadsheet shows the text instead of computing it.
    delimiter
        What separates the fields of a .csv file; default: whichever fits its header.
    on_bad_row
        Stop before anything is answered, or skip the row, if a query is empty or too long, or an
        item is unknown.
    items_column
        A column of ids or texts of the items that the row's query attends to, for a bundle with an
        item memory. An empty cell means the predicted items.
    items_delimiter
        What separates the items in a cell.
    config
        The TOML file of a service, for its limits, threads (default: one per core) and device.
    cache
        Folder for copies of bundles that URLs name.
    cluster
        auto|HOST:PORT: answer on a Ray cluster that is started on this machine, or on that of a
        head, of which this machine is a part. All its machines must see the bundle and the folder
        of --out. Default: in this process.
    """
    settings, opened = load_settings(config, {"workers": 1}), local_bundle(bundle, cache)
    facts = manifest.read(opened)
    chosen = asdict(asked)
    chosen["filter"] = _filter(chosen["filter"], settings.limits)
    options = complete_options(facts, **chosen)
    _require_allowed(options, settings.limits)
    form = format_of(out, explain=options.explain, escape_formulas=escape_formulas)
    items = None
    if items_column is not None:
        if facts.items is None:
            raise InvalidConfig(
                f"--items-column {items_column}: the bundle {facts.name} has no item memory"
            )
        items = ItemsColumn(name=items_column, limits=settings.limits, delimiter=items_delimiter)
    limits, engine = settings.limits, settings.engine
    queries = QueryFile(
        input, query, limits=limits, on_bad_row=on_bad_row, delimiter=delimiter, items=items
    )
    with joined(cluster) as workers, (folder := WorkFolder(out)).opened():
        if workers is not None:
            require_answerable(engine, state)
        log = None if state is None else find_log(state, opened, place=bundle)
        run = _opened(folder, queries, options, opened, log, engine, escaped=escape_formulas)
        answer = partial(run.answer, folder, form)
        if workers is not None:
            memory = Memory.of(bundle, cache, log, engine, run.job)
            answer = partial(answer_on, workers, run, memory, folder)
        return _answer(run, folder, form, answer)


def _opened(
    folder: WorkFolder,
    queries: QueryFile,
    options: PredictOptions,
    bundle: Path,
    log: LogPlace | None,
    settings: EngineSettings,
    *,
    escaped: bool,
) -> BulkRun:
    """Open a new or an interrupted run. Raises any error before queries are answered."""
    if log is not None and log.served.absolute() != bundle.absolute():
        _say(
            f"note: a service with this state serves {log.served}, to which it was reloaded;"
            f" these answers are those of {bundle}"
        )
    survey = queries.survey()
    job = folder.begin(
        Job(
            bundle=manifest.fingerprint(manifest.read(bundle)),
            state="" if log is None else log.id,
            input=survey.digest,
            **stored_options(options),
            part_rows=rows_of_part(options.top_k, explain=options.explain),
            escape_formulas=escaped,
            version=0 if log is None else log.newest,
            begun=time(),
        )
    )
    if folder.damaged:
        _say(f"{folder.out}: {folder.damaged:,} kept parts are damaged, and are answered again")
    loaded = open_memory(bundle, log, settings, until=job.version)
    memory = loaded.memory.view.items
    if queries.items is not None and memory is not None:
        queries = queries.knowing(memory)
        survey = queries.survey()  # again, with the open memory, which knows unknown items
    return BulkRun(
        queries=queries,
        survey=survey,
        job=job,
        options=options,
        loaded=loaded,
        threads=settings.threads,
    )


def _filter(text: str | None, limits: Limits) -> LabelFilter | None:
    """Return the filter that `--filter` has as JSON; raises `InvalidConfig`."""
    if text is None:
        return None
    try:
        return parse_json(text, at="--filter", most=limits.filter_values)
    except InvalidInput as error:
        raise InvalidConfig(f"{error.field} {error}") from error


def _require_allowed(options: PredictOptions, limits: Limits) -> None:
    """Raise `InvalidConfig` for what `POST /predict` would refuse."""
    chosen = {
        option.name: getattr(options, option.field)
        for option in BULK_OPTIONS
        if option.held is None and option.name != "filter"
    }
    try:
        limited(PredictRequest, limits)(queries=["any"], **chosen)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise InvalidConfig(f"--{option} {first['input']}: {what_is_wrong(first)}") from error


def _answer(
    run: BulkRun, folder: WorkFolder, form: Format, answer: Callable[[Report], None]
) -> int:
    out, rows, before = folder.out, run.survey.rows, run.rows_done(folder)
    if before:
        _say(f"{out}: goes on after {before:,} of {rows:,} queries")
    try:
        with reported(rows, "queries", done=before) as report:
            answer(report)
            folder.finish(run.parts, form)
    except Interrupted as end:
        _say(
            f"{end}: {run.rows_done(folder):,} of {rows:,} queries are answered and kept;"
            " the same command goes on there"
        )
        return end.status
    memory, skipped = run.loaded.memory, run.survey.skipped
    for warning in memory.only(memory.view, run.options.filter).filter_warnings:
        _say(f"note: --filter: {warning}")
    left = f", {skipped:,} of them skipped" if skipped else ""
    bundle, version = run.loaded.bundle.manifest.name, memory.view.version
    scores = "probabilities" if run.options.candidates else "sums of votes"
    _say(f"{out}: {rows:,} queries{left}; bundle {bundle}, version {version}; scores are {scores}")
    return 0
