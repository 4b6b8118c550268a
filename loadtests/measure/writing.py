"""Writing traffic: posted labels, alone and beside predictions, in bulk, and deletions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from time import perf_counter
from typing import Any

import orjson

from loadtests.clients.connection import (
    Connection,
    delete,
    get,
    post,
    put_label,
    require,
    stream,
)
from loadtests.clients.open_loop import Outcome, drive
from loadtests.measure.traffic import LABELS, PREDICT, Load
from training.experiments.service_process import Server

_CHECK_EVERY = 10  # one label in so many is looked up after it was answered


@dataclass(frozen=True, kw_only=True)
class WhileWriting:
    """Latencies in seconds over rounds that only predict and rounds that also post labels."""

    quiet: list[float] = field(default_factory=list)  # predictions of rounds without labels
    writing: list[float] = field(default_factory=list)  # predictions of rounds with labels
    labels: list[float] = field(default_factory=list)  # posted labels
    failures: dict[str, int] = field(default_factory=dict)

    def add(self, outcomes: Mapping[str, Outcome]) -> None:
        """Add a round; it was a writing one if it has an outcome for labels."""
        predictions = self.writing if LABELS in outcomes else self.quiet
        predictions += outcomes[PREDICT].latencies
        if LABELS in outcomes:
            self.labels.extend(outcomes[LABELS].latencies)
        for outcome in outcomes.values():
            for reason, failed in outcome.failures.items():
                self.failures[reason] = self.failures.get(reason, 0) + failed


def measure_while_writing(
    server: Server, queries: Iterator[str], load: Load, *, rounds: int = 4
) -> WhileWriting:
    """Predict in 2 * `rounds` rounds, and post one label a request in every second of them."""
    measured = WhileWriting()
    for turn in range(2 * rounds):
        measured.add(
            play_round(
                server,
                queries,
                load,
                seconds=load.seconds / rounds,
                turn=turn,
                label_requests=lambda posts, turn=turn: [
                    put_label(f"load-{turn}-{number}", f"{text} {number}")
                    for number, text in enumerate(islice(queries, posts))
                ],
            )
        )
    return measured


def play_round(
    server: Server,
    queries: Iterator[str],
    load: Load,
    *,
    seconds: float,
    turn: int,
    label_requests: Callable[[int], Sequence[bytes]],
    labels_per_request: int = 1,
) -> dict[str, Outcome]:
    """Predict for `seconds`; in odd turns also post the labels that `label_requests` builds."""
    streams = [load.predictions(queries, seconds=seconds, turn=turn)]
    if turn % 2:
        posts = load.label_posts(
            label_requests, seconds=seconds, turn=turn, labels_per_request=labels_per_request
        )
        streams.append(posts)
    return drive(server.port, streams)


def post_single_labels(
    server: Server, queries: Iterator[str], *, labels: int, prefix: str = "single"
) -> list[float]:
    """Seconds of each label posted alone, one after the other; their ids begin with `prefix`.

    Some are looked up at once, since an answer of 200 promises that the label is visible.
    """
    connection, seconds = Connection(server.port), []
    for number, text in enumerate(islice(queries, labels)):
        label_id = f"{prefix}-{number}"
        request = put_label(label_id, f"{text} {number}")
        start = perf_counter()
        answer = connection.ask(request)
        seconds.append(perf_counter() - start)
        require(answer)
        if number % _CHECK_EVERY == 0:
            shown = require(connection.ask(get(f"/labels/{label_id}")))
            assert shown["text"] == f"{text} {number}", "a label was answered before it was visible"
    connection.close()
    return seconds


def new_labels(texts: Iterator[str], prefix: str) -> Iterator[dict[str, Any]]:
    """Labels without end, each with a new id and a text that joins the next two of `texts`."""
    for number in count():
        yield {"id": f"{prefix}-{number}", "text": f"{next(texts)} {next(texts)}"}


def batches(labels: Sequence[dict[str, Any]], *, size: int) -> list[bytes]:
    """POST /labels requests with `size` labels each."""
    return [
        post("/labels", {"labels": labels[start : start + size]})
        for start in range(0, len(labels), size)
    ]


@dataclass(frozen=True, kw_only=True)
class BulkLoad:
    """Labels sent in one NDJSON request: how many, how many of them were created, how fast."""

    sent: int
    created: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Created labels a second."""
        return self.created / self.seconds


def post_in_bulk(server: Server, labels: Sequence[dict[str, Any]]) -> BulkLoad:
    """Send all labels in one NDJSON request, completely before the answer is read."""
    lines = b"".join(orjson.dumps(label) + b"\n" for label in labels)
    connection = Connection(server.port)
    start = perf_counter()
    connection.send(stream("/labels", lines))
    answers = connection.receive_stream()
    seconds = perf_counter() - start
    connection.close()
    created = sum(orjson.loads(line).get("status") == "created" for line in answers)
    return BulkLoad(sent=len(labels), created=created, seconds=seconds)


def delete_labels(server: Server, label_ids: Sequence[str]) -> list[float]:
    """Seconds of each deletion, one after the other."""
    connection, seconds = Connection(server.port), []
    for label_id in label_ids:
        start = perf_counter()
        require(connection.ask(delete(f"/labels/{label_id}")))
        seconds.append(perf_counter() - start)
    connection.close()
    return seconds
