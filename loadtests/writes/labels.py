"""Posts labels (alone, during predictions, on a busy machine, in bulk) and deletes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from time import perf_counter
from typing import Any
from urllib.parse import quote

import orjson

from loadtests.clients.connection import (
    Connection,
    get,
    one_by_one,
    post,
    post_bytes,
    predict,
    put_label,
    require,
)
from loadtests.clients.flood import saturate
from loadtests.clients.open_loop import Outcome, drive
from loadtests.traffic import LABELS, PREDICT, Load
from service.child_server import Server

NDJSON = "application/x-ndjson"
SATURATING_CONNECTIONS = 8
_MOST_PER_SECOND = 4_000  # prepared queries: more than a server answers per second
_HEAD_START_SECONDS = 1.0  # of the queries: they saturate the service before the first label
_CHECK_EVERY = 10  # one label in ten is looked up after its answer


def post_single_labels(
    server: Server, queries: Iterator[str], *, labels: int, prefix: str = "single"
) -> list[float]:
    """Post labels one after the other; return the seconds of each. Ids begin with `prefix`.

    Some are looked up at once, since an answer of 200 promises that the label is visible.
    """
    seconds = []
    with Connection(server.port) as connection:
        for number, text in enumerate(islice(queries, labels)):
            label_id, text = f"{prefix}-{number}", f"{text} {number}"
            request = put_label(label_id, text)
            start = perf_counter()
            answer = connection.ask(request)
            seconds.append(perf_counter() - start)
            require(answer)
            if number % _CHECK_EVERY == 0:
                shown = require(connection.ask(get(f"/labels/{label_id}")))
                assert shown["text"] == text, "a label was answered before it was visible"
    return seconds


def post_at_rate(server: Server, texts: Iterator[str], load: Load, *, prefix: str) -> Outcome:
    """Post single labels in an open loop."""
    requests = (
        put_label(f"{prefix}-{number}", f"{text} {number}") for number, text in enumerate(texts)
    )
    return drive(server.port, [load.label_posts(requests, turn=0)])[LABELS]


def post_during_saturation(
    server: Server, texts: Iterator[str], load: Load
) -> tuple[Outcome, float]:
    """Post single labels while queries saturate the service; return the queries per second too."""
    seconds = load.seconds + 2 * _HEAD_START_SECONDS
    queries = [predict(text) for text in islice(texts, int(_MOST_PER_SECOND * seconds))]
    with ThreadPoolExecutor(1) as waiting:
        reads = waiting.submit(
            saturate, server.port, queries, connections=SATURATING_CONNECTIONS, seconds=seconds
        )
        outcome = post_at_rate(server, texts, load, prefix="saturated")
        return outcome, reads.result().per_second


@contextmanager
def busy_cores(server: Server) -> Iterator[None]:
    """Keep all cores that the server may use busy during the block.

    The busy processes belong to the session of this process and the server. Linux first divides a
    core between sessions (autogroup), so processes of another session would take less.
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


@dataclass(frozen=True, kw_only=True)
class WhileWriting:
    """Latencies in seconds, in rounds that only predict and in rounds that also post labels."""

    quiet: list[float] = field(default_factory=list)  # predictions in rounds without labels
    writing: list[float] = field(default_factory=list)  # predictions in rounds with labels
    labels: list[float] = field(default_factory=list)  # posted labels
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, outcomes: Mapping[str, Outcome]) -> None:
        """Add a round; it counts as writing if it has an outcome for labels."""
        predictions = self.writing if LABELS in outcomes else self.quiet
        predictions += outcomes[PREDICT].latencies
        if LABELS in outcomes:
            self.labels.extend(outcomes[LABELS].latencies)
        for outcome in outcomes.values():
            self.failures.update(outcome.failures)


def play_round(
    server: Server,
    queries: Iterator[str],
    load: Load,
    labels: Iterator[dict[str, Any]],
    *,
    turn: int,
    labels_per_request: int = 1,
) -> dict[str, Outcome]:
    """Send predictions; in odd turns also post some of the endless `labels`."""
    streams = [load.predictions(queries, turn=turn)]
    if turn % 2:
        posts = batches(labels, size=labels_per_request)
        streams.append(load.label_posts(posts, turn=turn, labels_per_request=labels_per_request))
    return drive(server.port, streams)


def new_labels(texts: Iterator[str], prefix: str) -> Iterator[dict[str, Any]]:
    """Yield labels without end, each with a new id and the next two of `texts` joined."""
    for number in count():
        yield {"id": f"{prefix}-{number}", "text": f"{next(texts)} {next(texts)}"}


def batches(labels: Iterator[dict[str, Any]], *, size: int) -> Iterator[bytes]:
    """Yield POST /labels requests without end, with `size` labels each."""
    while True:
        yield post("/labels", {"labels": list(islice(labels, size))})


def write_in_bulk(
    server: Server, labels: Sequence[dict[str, Any]], *, method: str = "POST"
) -> tuple[int, float]:
    """Send all labels, or changes of labels (PATCH), in one NDJSON request.

    Returns how many were created or updated, and the seconds. The answer is read only after
    sending.
    """
    lines = b"".join(orjson.dumps(label) + b"\n" for label in labels)
    with Connection(server.port) as connection:
        start = perf_counter()
        connection.send(post_bytes("/labels", lines, media_type=NDJSON, method=method))
        answers = connection.receive_stream()
        seconds = perf_counter() - start
    written = ("created", "updated")
    return sum(orjson.loads(line).get("status") in written for line in answers), seconds


def change_one_by_one(server: Server, labels: Sequence[dict[str, Any]]) -> list[float]:
    """Change labels by single requests, one after the other; return the seconds of each."""
    requests = [
        post_bytes(
            f"/labels/{quote(label['id'], safe='')}",
            orjson.dumps({"metadata": label["metadata"]}),
            method="PATCH",
        )
        for label in labels
    ]
    return one_by_one(server.port, requests)[0]
