"""Settings: frozen values, their defaults and ranges, read from a TOML file and the environment.

    [limits]     what one request may ask for; beyond it the answer is 413, 422, 429 or 507
    [engine]     threads, caches and queues
    [server]     address and access

An option on the command line overrides the file, and the file overrides the defaults below. Two
defaults depend on other values: `engine.threads` and `engine.version_waiters`, see `load_settings`.
service/README.md lists all settings with their units.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Count, Natural, parse, read_toml
from service.core.errors import InvalidConfig
from service.core.types import DeviceName

API_KEYS_VARIABLE = "KEYMATCH_API_KEYS"
# One thread uses the GPU while the other counts votes. More would only take queries from each
# other's batches.
GPU_THREADS = 2
STATE_VARIABLE = "KEYMATCH_STATE"  # replaces --state, which other users of the machine can read
# A request that waits for a version keeps its connection for as long as its deadline allows, and
# nothing drops it to make room: most connections must be left to others.
CONNECTIONS_A_WAITER = 5  # by default
LEAST_CONNECTIONS_A_WAITER = 2  # whatever is set


def available_cores() -> int:
    """The cores that this process may run on; a container's CPU quota is not considered."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Limits:
    """What one request may ask for.

    - `body_bytes`: bytes of a request's body; beyond it 413
    - `queries`: queries per `/predict` request
    - `query_characters`: characters of a query, after trimming; also of a label's text and id
    - `top_k`: labels returned per query
    - `depth`: keys retrieved per query
    - `deadline_ms`: milliseconds; the longest deadline that a request may set
    - `default_deadline_ms`: milliseconds; the deadline of one plain query that sets none
    - `default_deadline_query_ms`: milliseconds that each further plain query adds to it
    - `labels`: labels per `POST /labels` request; a stream has no such limit
    - `label_queries`: queries posted with one label
    - `metadata_entries`: metadata entries of one label
    - `metadata_characters`: characters of one metadata key or value
    - `metadata_bytes`: bytes of all metadata of one label, names and values, in UTF-8
    - `instances`: instances per `POST /instances` request
    - `instance_labels`: labels of one instance
    - `items`: items that one `/predict` request names
    - `page`: labels in one answer of `GET /labels`
    - `answer_bytes`: bytes of one `/predict` answer, estimated; beyond it 422
    - `stream_answer_bytes`: bytes of one stream's answers that its client has not read yet
    - `held_bytes`: bytes of large bodies, streams and unread answers of one worker together; beyond
      it 429
    """

    body_bytes: Count = 4_194_304
    queries: Count = 256
    query_characters: Count = 2_048
    top_k: Count = 1_000
    depth: Count = 2_000
    deadline_ms: Count = 60_000
    default_deadline_ms: Count = 1_000
    default_deadline_query_ms: Natural = 50
    labels: Count = 1_000
    label_queries: Natural = 100
    metadata_entries: Natural = 64
    metadata_characters: Count = 1_024
    metadata_bytes: Count = 16_384
    instances: Count = 1_000
    instance_labels: Count = 100
    items: Count = 16
    page: Count = 1_000
    answer_bytes: Count = 67_108_864
    stream_answer_bytes: Count = 67_108_864
    held_bytes: Count = 268_435_456


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EngineSettings:
    """How the engine of one worker uses the machine.

    - `device`: what encodes and searches: "cpu", or "cuda" for one NVIDIA GPU
    - `threads`: threads that answer queries; at most as many child processes encode what is posted
      in bulk. Where no file sets it, `load_settings` divides the cores among the workers; with a
      GPU it is `GPU_THREADS`
    - `queue_queries`: plain queries waiting or running in each of the two lanes; beyond it 429
    - `queue_target_ms`: milliseconds that a queue of queries may stand; while even the shortest
      wait is longer, requests that would wait longer get 429
    - `queue_interval_ms`: milliseconds over which the shortest wait is taken
    - `version_waiters`: requests waiting for their `min_version`; beyond it 429. Where no file sets
      it, `load_settings` takes at most a fifth of `connections`, since each waiter keeps its own
    - `queue_labels`: labels and instances waiting to be encoded, or to be written; beyond it 429
    - `write_share`: share of the cores that encoding posted texts gets at least, however busy they
      are; beyond it queries go first
    - `write_deadline_ms`: milliseconds that a write may wait for its turn; beyond it 504, and 429
      while earlier writes have waited for half of it
    - `log_check_minutes`: minutes between two walks over the whole label log; 0: never
    - `snapshot_seconds`: seconds that writing a snapshot may take; then it is given up
    - `cached_queries`: query vectors kept
    - `live_rows`: rows learned since the bundle was written, sealed rows included; beyond it 507
    - `live_bytes`: bytes of main memory, estimated, of these rows and of labels learned since;
      beyond it 507. Default: what the budget of memory leaves (service/server/memory_budget.py)
    - `other_data`: whether a label log that was begun for other data than the bundle's is replayed
    - `segments`: folder of sealed segments; default: in the state folder, or with PostgreSQL in the
      temporary folder
    - `seal_rows`: live rows that are frozen together in a segment
    - `seal_items`: posted items that get an index together; fewer are scanned
    """

    device: DeviceName = "cpu"
    threads: Count = field(default_factory=available_cores)
    queue_queries: Count = 512
    queue_target_ms: Count = 10
    queue_interval_ms: Count = 50
    version_waiters: Natural = 200
    queue_labels: Count = 10_000
    write_share: Annotated[float, Field(gt=0.0, le=0.5)] = 0.15
    write_deadline_ms: Count = 10_000
    log_check_minutes: Annotated[float, Field(ge=0.0)] = 10.0
    snapshot_seconds: Count = 3_600
    cached_queries: Natural = 10_000
    live_rows: Count = 1_000_000
    live_bytes: Count | None = None
    other_data: bool = False
    segments: Path | None = None
    seal_rows: Count = 16_384
    seal_items: Count = 2_000


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ServerSettings:
    """Where the server listens and who may use it.

    - `host`: address to listen on
    - `port`: port; 0 takes any free port
    - `workers`: processes that serve, each with its own copy of the live memory and its own queues
    - `memory_bytes`: bytes of main memory for all workers and their children, which must hold all
      that the limits allow together. Default: the container's limit, or most of the machine's
    - `allow_anonymous`: whether other addresses than loopback are served without API keys
    - `hosts`: names, without port, by which clients call the service; "*" any. Default: on a
      loopback address its names; else with API keys any, without keys addresses and dotless names
    - `origins`: sites, such as "https://example.org", whose pages may write; its own always may
    - `metrics_need_key`: whether `GET /metrics` needs an API key with the scope `metrics`
    - `connections`: connections of one worker; beyond it those that are due first end
    - `probe_connections`: connections beyond those, which only probes and `/metrics` may use
    - `header_bytes`: bytes of a request's line and header fields; beyond it 431
    - `header_seconds`: seconds from a connection, or a header's first byte, to its end; then 408
    - `body_seconds`: seconds from a request's header to the end of its body; then 408
    - `idle_seconds`: seconds that a connection may do nothing between requests, in a stream of
      labels, or while it has an answer to read
    - `access_log`: whether each request is a line of the log
    - `shutdown_seconds`: seconds that accepted requests may still take after SIGTERM; then they get
      503, and the process ends within five more
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    workers: Count = 1
    memory_bytes: Count | None = None
    allow_anonymous: bool = False
    hosts: tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()
    metrics_need_key: bool = False
    connections: Count = 1_000
    probe_connections: Natural = 16
    header_bytes: Count = 32_768
    header_seconds: Count = 10
    body_seconds: Count = 60
    idle_seconds: Count = 75
    access_log: bool = True
    shutdown_seconds: Count = 30


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """All settings."""

    limits: Limits = field(default_factory=Limits)
    engine: EngineSettings = field(default_factory=EngineSettings)
    server: ServerSettings = field(default_factory=ServerSettings)

    def by_name(self) -> dict[str, Any]:
        """All values by name: no two tables have a setting of the same name."""
        return {**asdict(self.limits), **asdict(self.engine), **asdict(self.server)}


def load_settings(
    path: Path | None, server: Mapping[str, Any], engine: Mapping[str, Any] | None = None
) -> Settings:
    """Read settings from a TOML file, or none.

    The options `server` and `engine` override its tables of these names.
    Where the file does not set `engine.threads`, it is the number of cores divided by the number of
    workers, at least 1, and at most `GPU_THREADS` with a GPU; `engine.version_waiters` is lowered
    with `server.connections`. An option that is None is not set.
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
    derived = settings.engine
    if "threads" not in set_here:
        derived = replace(derived, threads=_threads(settings))
    if "version_waiters" not in set_here:
        derived = replace(derived, version_waiters=_version_waiters(settings))
    else:
        _require_few_waiters(settings, source)
    return replace(settings, engine=derived)


def _threads(settings: Settings) -> int:
    cores = max(1, available_cores() // settings.server.workers)
    return cores if settings.engine.device == "cpu" else min(cores, GPU_THREADS)


def _version_waiters(settings: Settings) -> int:
    most = settings.server.connections // CONNECTIONS_A_WAITER
    return min(settings.engine.version_waiters, most)


def _require_few_waiters(settings: Settings, source: str) -> None:
    waiters = settings.engine.version_waiters
    most = settings.server.connections // LEAST_CONNECTIONS_A_WAITER
    if waiters > most:
        raise InvalidConfig(
            f"{source}: engine.version_waiters is {waiters}, and may be at most {most}, half of"
            " server.connections, since each waiter keeps a connection: lower it, or raise"
            " server.connections"
        )
