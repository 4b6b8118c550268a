"""A memory that grows: rounds that span seals, waiting for segments, recall of the grown memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from loadtests.clients.connection import Connection, RequestFailed, get, require
from loadtests.measure.recall import Recall, measure_recall
from loadtests.measure.traffic import Load
from loadtests.measure.writing import (
    WhileWriting,
    batches,
    new_labels,
    play_round,
    post_in_bulk,
)
from service.core.encoding.encoder import encode
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.label_log import open_log
from service.core.memory.segment_store import SegmentStore
from service.core.memory.view import View
from service.core.types import Role
from service.engine.loaded_bundle import load_bundle
from service.settings import EngineSettings
from training.experiments.service_process import Server

SEALS = 2  # live rows must become a segment so often during the rounds
SPARE_ROWS = 2_000  # left free in a nearly filled block of live rows
LONGEST_SECONDS = 900.0  # limit for the rounds, and for all sealing to end
_SEALS_COUNTER = b"keymatch_seal_seconds_count "


def measure_across_seals(
    server: Server, texts: Iterator[str], load: Load, *, labels_per_request: int
) -> tuple[WhileWriting, int]:
    """Alternate rounds without and with labels until enough segments were sealed.

    The block of live rows is nearly filled after each seal, so that the next one comes within a few
    rounds. Returns the latencies and the number of seals.
    """
    measured = WhileWriting()
    seals_when_filled, turn = -1, 0
    deadline = perf_counter() + LONGEST_SECONDS
    while (seals := count_seals(server)) < SEALS and perf_counter() < deadline:
        if seals > seals_when_filled:
            fill_live_block(server, texts, prefix=f"fill-{turn}")
            seals_when_filled = seals
        labels = new_labels(texts, f"flow-{turn}")
        measured.add(
            play_round(
                server,
                texts,
                load,
                seconds=load.seconds,
                turn=turn,
                label_requests=lambda posts, labels=labels: batches(
                    list(islice(labels, labels_per_request * posts)), size=labels_per_request
                ),
                labels_per_request=labels_per_request,
            )
        )
        turn += 1
    return measured, count_seals(server)


def fill_live_block(server: Server, texts: Iterator[str], *, prefix: str) -> None:
    """Post labels until the block of live rows has only `SPARE_ROWS` rows left before it seals."""
    size = EngineSettings().seal_rows
    missing = max(0, size - memory_status(server)["live_rows"] % size - SPARE_ROWS)
    post_in_bulk(server, list(islice(new_labels(texts, prefix), missing)))


def count_seals(server: Server) -> int:
    """How many segments the server has sealed, from its metrics."""
    connection = Connection(server.port)
    status, body = connection.ask(get("/metrics"))
    connection.close()
    if status != 200:
        raise RequestFailed(f"GET /metrics answered with status {status}")
    line = next(line for line in body.splitlines() if line.startswith(_SEALS_COUNTER))
    return int(float(line.split()[1]))


def memory_status(server: Server) -> dict[str, Any]:
    """The memory's part of GET /info."""
    connection = Connection(server.port)
    status = require(connection.ask(get("/info")))["memory"]
    connection.close()
    return status


def wait_until_sealed(server: Server) -> None:
    """Wait until every planned segment is built."""
    deadline = perf_counter() + LONGEST_SECONDS
    while memory_status(server)["unsealed_segments"]:
        if perf_counter() > deadline:
            raise TimeoutError(
                f"the server still builds segments after {LONGEST_SECONDS:g} seconds"
            )
        sleep(0.5)


def open_grown_memory(bundle: Path, state: Path) -> tuple[Any, View]:
    """The encoder and the memory that a server has, rebuilt here from its log and segments."""
    search_in_one_thread()
    label_log = open_log(state, create=False)
    serving = load_bundle(bundle, label_log, EngineSettings())
    label_log.close()
    attach_segments(serving.memory, SegmentStore(state / "segments"))
    return serving.encoder, serving.memory.view


def measure_grown_recall(encoder: Any, view: View, queries: list[str]) -> Recall:
    """Recall of the grown memory at the bundle's depth b."""
    vectors = encode(encoder, queries, role=Role.QUERY)
    return measure_recall(view, vectors, depth=view.bundle.manifest.predictor.depth)


def attach_segments(memory: Any, store: SegmentStore) -> None:
    """Attach every segment that the server built; `LookupError` if one is missing."""
    view = memory.view
    parameters = view.bundle.manifest.index.parameters()
    for plan in list(view.unsealed_plans()):
        vectors = view.vectors(plan.rows)
        segment = store.find(store.key(vectors, parameters), parameters, shape=vectors.shape)
        if segment is None:
            raise LookupError(
                f"the server has not built the segment of live rows {plan.first} to {plan.stop}"
            )
        memory.attach(memory.seal(plan, segment))
