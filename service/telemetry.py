"""Telemetry: the metrics that the service exports, and its log.

service/README.md lists every metric, too; a test compares the lists.

Several workers share a folder: each writes its own files there, and the scraped worker answers for
all. Counters and histograms are summed, including those of ended workers. Gauges are merged over
the running workers:

| gauge             | merged by    | because                                                     |
|-------------------|--------------|-------------------------------------------------------------|
| `queue_depth`     | sum          | each worker has its own queue                               |
| `version_waiters` | sum          | each worker has its own waiters                             |
| `held_bytes`      | sum          | each worker holds its own requests                          |
| `connections`     | sum          | each worker has its own connections                         |
| `memory_rows`     | newest value | all hold the same memory; rows of one moment fit each other |
| `items`           | newest value | all hold the same items; those of one moment fit each other |
| `live_bytes`      | maximum      | all hold the same memory, one of them may be behind         |
| `limit`           | maximum      | all have the same settings                                  |
| `memory_version`  | minimum      | every worker already answers with this version              |
| `log_lag_events`  | maximum      | the worker that is furthest behind                          |
| `log_damaged`     | maximum      | all check the same log                                      |
| `build_info`      | maximum      | 1 for what any worker serves, 0 for what none serves now    |

prometheus_client chooses between memory and files when it is imported: the environment variable
PROMETHEUS_MULTIPROC_DIR must name the folder before a worker's process starts.

The log goes to stderr as JSON, one object per line. Logging never waits for the log's reader: lines
wait in a bounded queue, and one thread writes them. If the reader stops, new lines are dropped and
counted.
"""

from __future__ import annotations

import logging
import math
import os
import select
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from time import sleep
from typing import Any, TypeVar

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

# Geometric, from 50 microseconds to 6.5 seconds.
SECONDS_BUCKETS = tuple(50e-6 * 2**step for step in range(18))
# From 0.1 seconds to 14 minutes, since a segment's graph may have many rows.
SEAL_SECONDS_BUCKETS = tuple(0.1 * 2**step for step in range(14))
BATCH_BUCKETS = tuple(float(2**step) for step in range(11))
READING_STAGES = (
    *("queue", "filter", "spell", "tokenize", "encode", "fuse", "retrieve", "score", "rerank"),
)
STAGES = (*READING_STAGES, "log_commit", "publish")
ROW_KINDS = ("base", "sealed", "live", "tombstone")
ITEM_KINDS = ("base", "sealed", "live", "tombstone")
REJECTIONS = (
    "queue_full",
    "overloaded",
    "held_bytes",
    "answer_bytes",
    "deadline",
    "disconnected",
    "not_ready",
    "shards",
    "memory_full",
    "slow",
    "connections",
    "refused",
    "invalid",
)
# Settings that are the limit of a gauge.
LIMITS = (
    "queue_queries",
    "version_waiters",
    "live_rows",
    "live_bytes",
    "held_bytes",
    "answer_bytes",
    "stream_answer_bytes",
    "metadata_bytes",
    "connections",
    "memory_bytes",
)
RELOADS = ("ok", "failed")
REST_SECONDS = 0.0005  # the shortest sleep that lets a thread waiting for the GIL take it
# Errors on reading a damaged file; a ValueError if texts are not UTF-8 or not JSON.
_UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, struct.error)
_FILE_KINDS = ("counter", "gauge", "histogram")  # a metric is in files of one kind only
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

# uvicorn logs these when it listens, before bundle and log are opened. The service itself logs when
# they are open (`ready`), or the error that ends it.
_TOO_EARLY = frozenset({"Waiting for application startup.", "Application startup complete."})

QUEUE_BYTES = 1_048_576  # of waiting lines, some thousand; at most as many are being written
# After the first line the thread waits this long for more, and writes them together. Waking up for
# each line would cost a hundredth of a query's CPU time.
GATHER_SECONDS = 0.01
FLUSH_SECONDS = 0.5  # each of two final steps waits this long at most for the last lines

log = logging.getLogger("keymatch")

Kind = TypeVar("Kind", bound=Counter | Gauge | Histogram)


class Telemetry:
    """The metrics of one process. Labels take values from fixed sets only."""

    def __init__(self, shared: Path | None = None) -> None:
        """Count in the folder `shared` if there are several workers, else in memory."""
        self.shared, self.registry = shared, CollectorRegistry()
        self._served: tuple[str, str] | None = None
        counter, gauge = partial(self._add, Counter), partial(self._add, Gauge)
        histogram = partial(self._add, Histogram)
        self.requests = counter("requests_total", "Answered requests", "route", "status")
        self.request_seconds = histogram(
            "request_seconds", "Whole request, seconds", "route", buckets=SECONDS_BUCKETS
        )
        stage = "One stage of a request, seconds"
        self.stage_seconds = histogram(
            "stage_seconds", stage, "stage", values=STAGES, buckets=SECONDS_BUCKETS
        )
        self.queue_depth = gauge("queue_depth", "Queries waiting or running", merged="sum")
        self.version_waiters = gauge(
            "version_waiters", "Requests waiting for their min_version", merged="sum"
        )
        self.held_bytes = gauge(
            "held_bytes", "Bytes of large bodies, streams and unread answers", merged="sum"
        )
        self.connections = gauge("connections", "Open connections of clients", merged="sum")
        allowed = "What a setting allows each worker"
        self.limit = gauge("limit", allowed, "setting", values=LIMITS, merged="max")
        batch = "Queries that a thread took together, and labels written by one commit"
        self.batch_size = histogram("batch_size", batch, "kind", buckets=BATCH_BUCKETS)
        segment = "Building one sealed segment, seconds"
        self.seal_seconds = histogram("seal_seconds", segment, buckets=SEAL_SECONDS_BUCKETS)
        reloaded = "Bundles reloaded while serving"
        self.reloads = counter("reloads_total", reloaded, "outcome", values=RELOADS)
        rows, items = "Rows of the knowledge memory", "Items of the item memory"
        self.memory_rows = gauge("memory_rows", rows, "kind", merged="mostrecent")
        self.items = gauge("items", items, "kind", merged="mostrecent")
        learned = "Memory of what was learned since the bundle, bytes, estimated"
        self.live_bytes = gauge("live_bytes", learned, merged="max")
        self.memory_version = gauge(
            "memory_version", "Newest event that answers reflect", merged="min"
        )
        self.log_lag_events = gauge(
            "log_lag_events", "Logged events not yet in the memory", merged="max"
        )
        self.log_damaged = gauge(
            "log_damaged", "1 while a walk over the label log meets damage", merged="max"
        )
        self.cache_hits = counter(
            "encode_cache_hits_total", "Queries whose vector was in the cache"
        )
        self.cache_misses = counter("encode_cache_misses_total", "Queries encoded")
        self.corrected_queries = counter(
            "corrected_queries_total", "Queries searched as another text than was typed"
        )
        self.unanswered_queries = counter(
            "unanswered_queries_total", "Queries whose answer has no keyword"
        )
        refused = "Requests not served"
        self.rejected = counter("rejected_total", refused, "reason", values=REJECTIONS)
        self.dropped_log_lines = counter(
            "dropped_log_lines_total", "Log lines that nobody read in time"
        )
        served = "1 for what is served"
        self.build_info = gauge("build_info", served, "version", "bundle", merged="max")
        # Look these up once: `labels` validates its values at each call.
        self._stages = {stage: self.stage_seconds.labels(stage) for stage in STAGES}
        self._answered: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        if shared is not None:
            # A starting worker answers no queries yet: a 0 from it must not become the minimum.
            self.memory_version.set(math.inf)

    def _add(
        self,
        kind: Callable[..., Kind],
        name: str,
        text: str,
        *labels: str,
        values: Sequence[str] = (),
        merged: str | None = None,
        **options: Any,
    ) -> Kind:
        """Register a metric; its series for the label `values` exist from the start, at 0.

        `merged` names how several workers' gauges are merged; see the table above.
        """
        if merged is not None:
            options["multiprocess_mode"] = f"live{merged}"
        metric = kind(f"keymatch_{name}", text, labels, registry=self.registry, **options)
        for value in values:
            metric.labels(value)
        return metric

    def serves(self, *, version: str, bundle: str) -> None:
        """Set `build_info` to the version and bundle served from now on."""
        # A series cannot be removed from a file, so the former one is set to 0 instead.
        if self._served is not None:
            self.build_info.labels(*self._served).set(0)
        self._served = (version, bundle)
        self.build_info.labels(*self._served).set(1)

    def allows(self, limits: Mapping[str, int]) -> None:
        """Set the gauges of the settings in `LIMITS`."""
        for setting in LIMITS:
            self.limit.labels(setting).set(limits[setting])

    def observe_stages(self, seconds: Mapping[str, float]) -> None:
        """Observe the seconds of each stage."""
        for stage, value in seconds.items():
            self._stages[stage].observe(value)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request, and observe how long it took."""
        series = self._answered.get((route, status))
        if series is None:
            series = (self.requests.labels(route, status), self.request_seconds.labels(route))
            self._answered[route, status] = series
        answered, duration = series
        answered.inc()
        duration.observe(seconds)

    def render(self) -> bytes:
        """Return all workers' metrics in Prometheus's text format. Never call it in the event loop.

        Rendering takes milliseconds of pure Python, more if several workers' files are merged. Even
        in another thread it would hold the GIL for up to five milliseconds at a time, so it rests
        before each family of metrics.
        """
        families = self.registry.collect() if self.shared is None else _merged(self.shared)
        return generate_latest(_Resting(families))


def forget_ended(shared: Path, running: Collection[int]) -> None:
    """Remove the gauges of ended processes, all except `running`; counters stay."""
    for path in shared.glob("gauge_live*_*.db"):
        process = int(path.stem.rpartition("_")[2])
        if process not in running:
            mark_process_dead(process, str(shared))  # type: ignore[no-untyped-call]


class _Resting(Collector):
    """Yields families of metrics, and rests before each one."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            # Leave out creation times: they are a third of the text, unused, and not kept in files.
            family.samples = [
                sample for sample in family.samples if not sample.name.endswith("_created")
            ]
            sleep(REST_SECONDS)
            yield family


def _merged(folder: Path) -> Iterator[Metric]:
    for kind in _FILE_KINDS:
        files = [str(path) for path in folder.glob(f"{kind}_*.db")]
        try:
            families = _families(files)
        except _UNREADABLE:
            families = _families(list(filter(_readable, files)))
        yield from families
        sleep(REST_SECONDS)


def _families(files: list[str]) -> Iterable[Metric]:
    """Merge the families of several files. Raises one of `_UNREADABLE` if a file is damaged."""
    return MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call,no-any-return]


def _readable(file: str) -> bool:
    """Return whether a file can be merged; a killed worker may have left an incomplete one.

    An empty file holds no counts, so it is not logged.
    """
    try:
        _families([file])
    except _UNREADABLE as error:
        path = Path(file)
        if path.exists() and path.stat().st_size:
            log.warning(
                "a file of metrics is damaged, and its counts are left out",
                extra={"file": path.name, "cause": str(error)},
            )
        return False
    return True


# The log -----------------------------------------------------------------------------


class JsonLines(logging.Formatter):
    """Formats time, level, message and the fields passed as `extra` as one JSON line."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **{
                name: value
                for name, value in vars(record).items()
                if name not in _STANDARD and not name.startswith("_")  # Ray adds such a field
            },
        }
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(document, default=str).decode()


class QueuedLines(logging.Handler):
    """Writes each record as a line to a file descriptor, in a separate thread."""

    def __init__(self, descriptor: int, *, count_dropped: Callable[[], None]) -> None:
        """Start the thread; `count_dropped` is called for each line dropped for lack of room."""
        super().__init__()
        self._descriptor, self._count_dropped = descriptor, count_dropped
        self._changed = Condition()
        self._lines: list[bytes] = []
        self._bytes = self._dropped = 0
        self._writing = self._closed = False
        self._at_once = False
        self._thread = Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or drop it if the queue is full."""
        try:
            line = self.format(record).encode() + b"\n"
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if self._bytes + len(line) > QUEUE_BYTES:
                self._dropped += 1
            else:
                if not self._lines:
                    self._changed.notify_all()
                self._lines.append(line)
                self._bytes += len(line)
                line = b""
        if line:
            self._count_dropped()
        elif self._at_once:
            self.flush()

    def flush(self) -> None:
        """Wait until all lines are written, for at most `FLUSH_SECONDS`."""
        with self._changed:
            if not self._changed.wait_for(self._idle, timeout=FLUSH_SECONDS):
                self._at_once = False  # nobody reads the log: do not wait again

    def write_at_once(self) -> None:
        """From now on wait for each line, until one takes longer than `FLUSH_SECONDS`."""
        self._at_once = True
        self.flush()

    def close(self) -> None:
        """Write the waiting lines, as `flush` does, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.flush()
        super().close()

    def _idle(self) -> bool:
        return not self._lines and not self._writing

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closed)
                if not self._lines:
                    return
                hurries = self._closed or self._at_once
            if not hurries:
                sleep(GATHER_SECONDS)
            with self._changed:
                lines, self._lines, self._bytes = self._lines, [], 0
                dropped, self._dropped = self._dropped, 0
                self._writing = True
            if dropped:
                lines.append(self._of_dropped(dropped))
            for piece in _pieces(lines):
                _write(self._descriptor, piece)
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _of_dropped(self, lines: int) -> bytes:
        message = "log lines were dropped: nobody read the log"
        record = logging.makeLogRecord(
            {"levelno": logging.WARNING, "levelname": "WARNING", "msg": message, "lines": lines}
        )
        return self.format(record).encode() + b"\n"


def configure_logs(*, access: bool, count_dropped: Callable[[], None] = lambda: None) -> None:
    """Send the logs of keymatch and uvicorn, and warnings of Python, to stderr.

    `access` turns on one line per request. `count_dropped` is called for each line that is dropped
    because the log's reader has stopped.
    """
    handler: logging.Handler = logging.NullHandler()
    if sys.stderr is not None:  # it is None if the process was started with a closed stderr
        handler = QueuedLines(sys.stderr.fileno(), count_dropped=count_dropped)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: record.getMessage() not in _TOO_EARLY
    )
    for name in ("keymatch", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("keymatch.access").setLevel(logging.INFO if access else logging.WARNING)


def write_logs_at_once() -> None:
    """Write each line before the caller continues: the process may end at any moment."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, QueuedLines):
            handler.write_at_once()


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join lines to pieces that a pipe takes at once, so several processes' lines do not mix."""
    kept = b""
    for line in lines:
        if kept and len(kept) + len(line) > select.PIPE_BUF:
            yield kept
            kept = b""
        kept += line
    yield kept


def _write(descriptor: int, content: bytes) -> None:
    """Write all of `content`, however long that takes, unless the log is closed."""
    with suppress(OSError):
        while content:
            try:
                content = content[os.write(descriptor, content) :]
            except BlockingIOError:  # another user of the descriptor made it non-blocking
                select.select([], [descriptor], [])
