"""Settings: frozen values, their defaults and ranges, read from a TOML file and the environment.

    [limits]     what one request may ask for; the answer to more is 413, 422, 429 or 507
    [engine]     threads, caches and queues
    [server]     address and access

An option on the command line overrides the file, and the file overrides the defaults below. Three
defaults depend on other values (`load_settings`): `server.workers`, `engine.threads` and
`engine.version_waiters`. service/README.md explains all settings.
"""

from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core import label_filter, text_identity
from service.core.config import STRICT, Count, Natural, parse, read_toml
from service.core.errors import InvalidConfig
from service.core.memory import rule_table
from service.core.processes.resources import available_cores, memory_limit
from service.core.types import DeviceName

API_KEYS_VARIABLE = "KEYMATCH_API_KEYS"
JWKS_VARIABLE = "KEYMATCH_JWKS"
# One thread uses the GPU while the other counts votes. More threads would make batches smaller.
GPU_THREADS = 2
# With the default limits a worker and its children take up to 1.6 GB, plus the live memory, which
# exists twice during a reload.
MEMORY_PER_WORKER = 3 * 1024**3
# Connections per request that may wait for a version. Such a request occupies its connection until
# its deadline, and is not dropped to make room, so most connections must be left to others.
CONNECTIONS_A_WAITER = 5  # by default
LEAST_CONNECTIONS_A_WAITER = 2  # the minimum, whatever is set
MOST_DAYS = 36_500  # of a half-life


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Limits:
    """The limits of one request."""

    body_bytes: Count = 4_194_304  # in a request's body; more is 413
    queries: Count = 256  # per `/predict` request
    # After trimming; also of a label's text, aliases and id.
    query_characters: Count = text_identity.MOST_TEXT_CHARACTERS
    top_k: Count = 1_000  # labels returned per query
    depth: Count = 2_000  # keys retrieved per query
    deadline_ms: Count = 60_000  # the longest that a request may set
    default_deadline_ms: Count = 1_000  # default of one plain query
    default_deadline_query_ms: Natural = 50  # added for each further plain query
    labels: Count = 1_000  # per `POST /labels` request; a stream has no such limit
    label_aliases: Natural = text_identity.MOST_ALIASES  # of one label
    label_queries: Natural = 100  # queries posted with one label
    metadata_entries: Natural = label_filter.MOST_ENTRIES  # per label
    metadata_characters: Count = label_filter.MOST_CHARACTERS  # per metadata key or value
    # Of one label's metadata, names and values, in UTF-8.
    metadata_bytes: Count = label_filter.MOST_METADATA_BYTES
    filter_values: Count = label_filter.MOST_VALUES  # conditions and values of one filter
    rules: Count = 1_000  # per `POST /rules` request
    rule_labels: Count = 1_000  # that one rule hides, pins or boosts by id
    instances: Count = 1_000  # per `POST /instances` request
    instance_labels: Count = 100  # labels of one instance
    items: Count = 16  # named by one `/predict` request
    page: Count = 1_000  # labels in one answer of `GET /labels`
    answer_bytes: Count = 67_108_864  # in one `/predict` answer, estimated; more is 422
    stream_answer_bytes: Count = 67_108_864  # unread answers of one stream of labels
    # In large bodies, streams and unread answers of one worker together; more is 429.
    held_bytes: Count = 268_435_456


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EngineSettings:
    """Resources of one worker's engine."""

    device: DeviceName = "cpu"  # for encoding and searching; "cuda" is one NVIDIA GPU
    # Threads that answer; at most as many child processes encode bulk posts.
    threads: Count = field(default_factory=available_cores)
    queue_queries: Count = 512  # waiting or running in each of the two lanes; more is 429
    # While even the shortest wait exceeds this, requests that would wait longer get 429.
    queue_target_ms: Count = 10
    queue_interval_ms: Count = 50  # interval for measuring the shortest wait
    version_waiters: Natural = 200  # requests waiting for their `min_version`; more is 429
    queue_labels: Count = 10_000  # labels and instances waiting to be written; more is 429
    # Share of the cores that encoding posted texts gets at any load; beyond it queries go first.
    write_share: Annotated[float, Field(gt=0.0, le=0.5)] = 0.15
    # How long a write may wait; then 504. New writes get 429 while earlier ones waited half of it.
    write_deadline_ms: Count = 10_000
    log_check_minutes: Annotated[float, Field(ge=0.0)] = 10.0  # between log checks; 0: never
    snapshot_seconds: Count = 3_600  # then the snapshot is canceled
    # For a bundle's first answers; a slower bundle is refused.
    warm_up_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    cached_queries: Natural = 10_000  # cached query vectors
    live_rows: Count = 1_000_000  # rows learned since the bundle was written; more is 507
    # Estimated memory of these rows and of labels learned since; more is 507. None: what
    # service/server/memory_budget.py leaves.
    live_bytes: Count | None = None
    # Steps of the rules that one word of a query makes act, and of those without condition; more is
    # 422. A label that a rule names is one step, and a condition of a filter is 20.
    rule_work: Count = rule_table.MOST_WORK
    # In days: clicks that are posted from now on, or with `at`, lose half their weight. None: none.
    click_half_life: Annotated[float, Field(gt=0.0, le=MOST_DAYS)] | None = None
    other_data: bool = False  # whether to accept a log that was begun for other data
    segments: Path | None = None  # folder of segments; None: in the state folder, or temporary
    seal_rows: Count = 16_384  # live rows per sealed segment
    seal_items: Count = 2_000  # posted items per index; fewer are scanned
    # For a shard's answer. Then the query gets 503, or with `partial_answers` the other shards'.
    shard_timeout_ms: Count = 1_000
    partial_answers: bool = False


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ServerSettings:
    """Where the server listens and who may use it."""

    host: str = "127.0.0.1"  # address to listen on
    port: Annotated[int, Field(ge=0, le=65535)] = 8000  # 0 takes any free port
    # Serving processes, each with its own live memory and queues. Threads of one process share the
    # GIL, so the default is one process per core.
    workers: Count = 1
    # For all workers and their children. None: the container's limit, or most of the machine's.
    memory_bytes: Count | None = None
    allow_anonymous: bool = False  # whether to serve addresses other than loopback without API keys
    # Host names, without port, that clients may use; "*" is any. None: see service/http/access.py.
    hosts: tuple[str, ...] | None = None
    # Sites whose pages may write and read answers; the service's own pages always may.
    origins: tuple[str, ...] = ()
    metrics_need_key: bool = False  # whether `GET /metrics` needs the scope `metrics`
    token_audience: str | None = None  # that a JSON Web Token must name; None: any
    token_issuer: str | None = None  # that a JSON Web Token must come from; None: any
    connections: Count = 1_000  # per worker; beyond it those that are due first end
    probe_connections: Natural = 16  # further ones, only for probes and `/metrics`
    header_bytes: Count = 32_768  # in a request's line and header fields; more is 431
    header_seconds: Count = 10  # from a connection, or a header's first byte, to its end; then 408
    body_seconds: Count = 60  # from a request's header to the end of its body; then 408
    # Without action of the client: between requests, in a stream of labels, with an unread answer.
    idle_seconds: Count = 75
    access_log: bool = True  # whether to log a line per request
    # After SIGTERM: requests are still accepted, and each answer ends its connection, so that load
    # balancers and clients go elsewhere. 0: the service stops at once.
    leave_seconds: Natural = 0
    shutdown_seconds: Count = 30  # for accepted requests when it stops; then they get 503


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """All settings."""

    limits: Limits = field(default_factory=Limits)
    engine: EngineSettings = field(default_factory=EngineSettings)
    server: ServerSettings = field(default_factory=ServerSettings)

    def by_name(self) -> dict[str, Any]:
        """Return all values by name, which is unique across the tables."""
        return {**asdict(self.limits), **asdict(self.engine), **asdict(self.server)}


def load_settings(
    path: Path | None, server: Mapping[str, Any], engine: Mapping[str, Any] | None = None
) -> Settings:
    """Load settings from an optional TOML file and options.

    The options `server` and `engine` override the file's tables; an option that is None is not set.
    Values that are not set follow from others:

    - `server.workers` is the number of cores, at most one per `MEMORY_PER_WORKER`; 1 with a GPU
    - `engine.threads` is the number of cores divided by `server.workers`, at least 1, and at most
      `GPU_THREADS` with a GPU
    - `engine.version_waiters` is lowered with `server.connections`

    Raises `InvalidConfig` naming the file, the key and what is allowed.
    """
    document = read_toml(path) if path is not None else {}
    for name, options in (("server", server), ("engine", engine or {})):
        given = {option: value for option, value in options.items() if value is not None}
        table = document.get(name, {})
        if given and isinstance(table, dict):
            document = {**document, name: {**table, **given}}
    source = str(path) if path else "command line"
    settings, set_here = parse(Settings, document, source=source), document.get("engine", {})
    serving, answering = settings.server, settings.engine
    if answering.device == "cpu" and "workers" not in document.get("server", {}):
        memory = serving.memory_bytes or memory_limit()
        workers = max(1, min(available_cores(), memory // MEMORY_PER_WORKER))
        serving = replace(serving, workers=workers)
    derived: dict[str, Any] = {}
    if "threads" not in set_here:
        cores = max(1, available_cores() // serving.workers)
        derived["threads"] = cores if answering.device == "cpu" else min(cores, GPU_THREADS)
    waiters = answering.version_waiters
    if "version_waiters" not in set_here:
        derived["version_waiters"] = min(waiters, serving.connections // CONNECTIONS_A_WAITER)
    elif waiters > (most := serving.connections // LEAST_CONNECTIONS_A_WAITER):
        raise InvalidConfig(
            f"{source}: engine.version_waiters is {waiters}, and may be at most {most}, half of"
            " server.connections, since each waiter keeps a connection: lower it, or raise"
            " server.connections"
        )
    return replace(settings, server=serving, engine=replace(answering, **derived))
