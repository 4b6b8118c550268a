"""A growing memory: rounds that span seals, and the recall afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter, sleep

from loadtests.resources import info_of, metric, metrics_of
from loadtests.traffic import Load
from loadtests.writes.labels import WhileWriting, new_labels, play_round, write_in_bulk
from service.bulk.memory import find_log, open_memory
from service.child_server import Server
from service.core.index.faiss_hnsw import search_in_one_thread
from service.engine.loaded_bundle import LoadedBundle
from service.settings import EngineSettings

SEALS = 2  # live rows must become a segment this often during the rounds
SPARE_ROWS = 2_000  # left free in a nearly filled block of live rows
LONGEST_SECONDS = 900.0  # limit for the rounds, and for the end of all sealing


def measure_across_seals(
    server: Server, texts: Iterator[str], load: Load, *, labels_per_request: int
) -> tuple[WhileWriting, int]:
    """Alternate rounds without and with labels until enough segments were sealed.

    The block of live rows is nearly filled after each seal, so the next seal follows within a few
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
                server, texts, load, labels, turn=turn, labels_per_request=labels_per_request
            )
        )
        turn += 1
    return measured, count_seals(server)


def fill_live_block(server: Server, texts: Iterator[str], *, prefix: str) -> None:
    """Post labels until the block of live rows has only `SPARE_ROWS` rows left before it seals."""
    size = EngineSettings().seal_rows
    missing = max(0, size - info_of(server.port)["memory"]["live_rows"] % size - SPARE_ROWS)
    write_in_bulk(server, list(islice(new_labels(texts, prefix), missing)))


def count_seals(server: Server) -> int:
    """Return how many segments the server has sealed, from its metrics."""
    return int(metric(metrics_of(server.port), "keymatch_seal_seconds_count"))


def wait_until_sealed(server: Server) -> None:
    """Wait until every planned segment is built."""
    deadline = perf_counter() + LONGEST_SECONDS
    while info_of(server.port)["memory"]["unsealed_segments"]:
        if perf_counter() > deadline:
            raise TimeoutError(f"the server still seals after {LONGEST_SECONDS:g} seconds")
        sleep(0.5)


def open_grown_memory(bundle: Path, state: Path) -> LoadedBundle:
    """Open a server's memory from its log and segments.

    Raises `LookupError` if the server has not built a segment.
    """
    search_in_one_thread()
    log = find_log(str(state), bundle)
    loaded = open_memory(bundle, log, EngineSettings(), until=log.newest)
    for plan in loaded.memory.view.unsealed_plans():
        raise LookupError(f"no segment holds the live rows {plan.first} to {plan.stop}")
    return loaded
