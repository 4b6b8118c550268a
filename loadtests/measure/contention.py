"""Posted labels while queries or other processes need every core."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from time import perf_counter

from loadtests.clients.closed_loop import Throughput, saturate
from loadtests.clients.connection import Connection, predict, put_label, require
from loadtests.clients.open_loop import Outcome, drive
from loadtests.measure.processor_time import with_processor_time
from loadtests.measure.traffic import LABELS, Load
from loadtests.measure.writing import post_single_labels
from training.experiments.service_process import Server

SATURATING_CONNECTIONS = 8
_MOST_PER_SECOND = 4_000  # more queries than a server answers in a second
_HEAD_START_SECONDS = 1.0  # of the queries, so that no label is posted before they saturate


def first_label_seconds(server: Server, text: str) -> float:
    """Seconds of the first label that a server is asked to take."""
    connection = Connection(server.port)
    start = perf_counter()
    require(connection.ask(put_label("first", text)))
    seconds = perf_counter() - start
    connection.close()
    return seconds


def label_cost(
    server: Server, texts: Iterator[str], *, labels: int, prefix: str
) -> tuple[float, list[float]]:
    """Processor seconds of the service a label, and the latencies, of labels posted one by one."""
    latencies, processor = with_processor_time(
        server.pid, lambda: post_single_labels(server, texts, labels=labels, prefix=prefix)
    )
    return processor / labels, latencies


def post_at_rate(server: Server, texts: Iterator[str], load: Load, *, prefix: str) -> Outcome:
    """Post single labels in an open loop."""

    def requests(posts: int) -> list[bytes]:
        return [
            put_label(f"{prefix}-{number}", f"{text} {number}")
            for number, text in enumerate(islice(texts, posts))
        ]

    stream = load.label_posts(requests, seconds=load.seconds, turn=0)
    return drive(server.port, [stream])[LABELS]


def post_beside_saturation(
    server: Server, texts: Iterator[str], load: Load, *, prefix: str
) -> tuple[Outcome, Throughput]:
    """Post single labels while queries saturate the service from another process."""
    seconds = load.seconds + 2 * _HEAD_START_SECONDS
    queries = [predict(text) for text in islice(texts, int(_MOST_PER_SECOND * seconds))]
    with ThreadPoolExecutor(1) as waiting:
        reads = waiting.submit(
            saturate,
            server.port,
            queries,
            connections=SATURATING_CONNECTIONS,
            seconds=seconds,
        )
        outcome = post_at_rate(server, texts, load, prefix=prefix)
        return outcome, reads.result()


@contextmanager
def busy_cores(server: Server) -> Iterator[None]:
    """Keep all cores that the server may use busy for the block.

    The busy processes belong to the session of this one and of the server. Linux divides a core
    between sessions first (autogroup), so that processes of another session would take less.
    """
    command = [sys.executable, "-c", "while True: pass"]
    cores = os.sched_getaffinity(server.pid)
    busy = [subprocess.Popen(command) for _ in cores]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def post_beside_busy_cores(
    server: Server, texts: Iterator[str], load: Load, *, prefix: str
) -> Outcome:
    """Post single labels while other processes keep every core busy."""
    with busy_cores(server):
        return post_at_rate(server, texts, load, prefix=prefix)
