"""Settings: frozen values, their defaults and ranges, read from a TOML file and the environment.

    [limits]     what one request may ask for; beyond it the answer is 413, 422, 429 or 507
    [engine]     threads, caches and queues
    [server]     address and access

Options on the command line stand above the file, the file above the defaults below. One default
depends on another value: `engine.threads` is a worker's part of the cores, see `load_settings`.
"""

import os
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Count, Natural, parse, read_toml

API_KEYS_VARIABLE = "KEYMATCH_API_KEYS"
STATE_VARIABLE = "KEYMATCH_STATE"  # in place of --state, whose value others can read


def available_cores() -> int:
    """The cores that this process may run on; a container's CPU quota is not among what it sees."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Limits:
    """What one request may ask for."""

    body_bytes: Count = 4_194_304
    queries: Count = 256  # a request
    query_characters: Count = 2_048  # after trimming; also a label's text and id
    top_k: Count = 1_000
    depth: Count = 2_000
    deadline_ms: Count = 60_000
    default_deadline_ms: Count = 1_000
    labels: Count = 1_000  # a request
    label_queries: Natural = 100  # a label
    metadata_entries: Natural = 64  # a label
    metadata_characters: Count = 1_024  # a key or a value
    instances: Count = 1_000  # a request
    instance_labels: Count = 100  # an instance
    page: Count = 1_000  # labels in one answer of GET /labels
    stream_answer_bytes: Count = 67_108_864  # answers of one stream that its client has not read


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EngineSettings:
    """How the engine uses the machine."""

    # Answering, in each worker. Where no file sets them, `load_settings` divides the cores.
    threads: Count = field(default_factory=available_cores)
    queue_queries: Count = 512  # waiting and running queries; beyond it 429
    queue_labels: Count = 10_000  # waiting labels; beyond it 429
    cached_queries: Natural = 10_000  # encoded texts kept
    live_rows: Count = 1_000_000  # rows learned since the bundle was written; beyond it 507
    segments: Path | None = None  # folder of sealed segments; default: in the state folder
    seal_rows: Count = 16_384  # live rows that are frozen together in a segment


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ServerSettings:
    """Where the server listens and who may use it."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    workers: Count = 1  # processes
    allow_anonymous: bool = False  # serve other addresses than loopback without API keys
    access_log: bool = True
    shutdown_seconds: Count = 30  # the most that accepted requests may take after SIGTERM


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """All settings."""

    limits: Limits = field(default_factory=Limits)
    engine: EngineSettings = field(default_factory=EngineSettings)
    server: ServerSettings = field(default_factory=ServerSettings)


def load_settings(path: Path | None, server: Mapping[str, Any]) -> Settings:
    """Read settings from a TOML file (or none) with `server` options put above its own.

    Threads that the file does not set are the cores divided among the workers, at least one each.
    Raises `InvalidConfig` naming the file, the key and what is allowed.
    """
    document = read_toml(path) if path is not None else {}
    given = {name: value for name, value in server.items() if value is not None}
    table = document.get("server", {})
    if isinstance(table, dict):
        document = {**document, "server": {**table, **given}}
    settings = parse(Settings, document, source=str(path) if path else "command line")
    if "threads" in document.get("engine", {}):
        return settings
    threads = max(1, available_cores() // settings.server.workers)
    return replace(settings, engine=replace(settings.engine, threads=threads))
