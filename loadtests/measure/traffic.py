"""The measurements of the benchmark, one function a row of the budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np

from loadtests.clients.closed_loop import Throughput, saturate
from loadtests.clients.connection import Connection, get, predict, put_label, require
from loadtests.clients.open_loop import Outcome, Stream, drive, poisson_starts
from loadtests.measure.bare_predictor import BarePredictor
from training.experiments.service_process import Server

PREDICT, LABELS = "predict", "labels"
CONNECTIONS = (2, 4, 8, 16)  # tried for saturation
_BLOCK = 25  # queries that one side of the paired comparison answers before the other does
_CHECKED = 10  # a label in so many is looked up after its 200


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much to ask: `rate` requests a second for `seconds`, arrivals drawn from `seed`."""

    rate: float
    label_rate: float
    seconds: float
    seed: int

    def stream(self, queries: Iterator[str], *, seconds: float, seed: int) -> Stream:
        """Predictions at the rate, arriving as independent users do."""
        starts = poisson_starts(rate=self.rate, seconds=seconds, seed=self.seed + seed)
        requests = [predict(query) for query in islice(queries, len(starts))]
        return Stream(name=PREDICT, requests=requests, starts=starts)


def predictions(server: Server, queries: Iterator[str], load: Load) -> Outcome:
    """Open loop over `queries`."""
    stream = load.stream(queries, seconds=load.seconds, seed=0)
    return drive(server.port, [stream])[PREDICT]


def saturation(server: Server, queries: Iterator[str], load: Load) -> list[Throughput]:
    """Closed loop at several numbers of connections, a share of the time each."""
    seconds = load.seconds / len(CONNECTIONS)
    found = []
    for connections in CONNECTIONS:
        requests = [predict(query) for query in islice(queries, int(2_000 * seconds))]
        found.append(saturate(server.port, requests, connections=connections, seconds=seconds))
    return found


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Seconds of the same queries over HTTP and bare, and what the server says it spent."""

    http: list[float]
    bare: list[float]
    stages: dict[str, float]  # median milliseconds by stage

    @property
    def at_median(self) -> float:
        """Milliseconds that the service adds at the median."""
        return float(np.median(self.http) - np.median(self.bare)) * 1000


def overhead(server: Server, bare: BarePredictor, queries: Iterator[str], load: Load) -> Overhead:
    """The same queries by turns: a block bare, then over one connection, then the reverse."""
    http: list[float] = []
    alone: list[float] = []
    stages: dict[str, list[float]] = {}
    connection = Connection(server.port)
    deadline = perf_counter() + load.seconds
    turn = 0
    while perf_counter() < deadline:
        block = list(islice(queries, _BLOCK))
        for over_http in (turn % 2 == 0, turn % 2 == 1):
            for query in block:
                if not over_http:
                    alone.append(bare.seconds(query))
                    continue
                request = predict(query)
                start = perf_counter()
                answer = connection.ask(request)
                http.append(perf_counter() - start)
                for stage, value in require(answer)["timing_ms"].items():
                    stages.setdefault(stage, []).append(value)
        turn += 1
    connection.close()
    medians = {stage: float(np.median(values)) for stage, values in stages.items()}
    return Overhead(http=http, bare=alone, stages=medians)


@dataclass(frozen=True, kw_only=True)
class WhileWriting:
    """Predictions of alternating rounds, and the labels posted in every second one."""

    quiet: list[float]
    writing: list[float]
    labels: list[float]
    failures: dict[str, int]


def while_writing(
    server: Server, queries: Iterator[str], load: Load, *, rounds: int = 4
) -> WhileWriting:
    """Open loop of predictions in 2 * `rounds` rounds; labels beside it in every second one."""
    quiet: list[float] = []
    writing: list[float] = []
    labels: list[float] = []
    failures: dict[str, int] = {}
    seconds = load.seconds / rounds
    for turn in range(2 * rounds):
        streams = [load.stream(queries, seconds=seconds, seed=turn)]
        if turn % 2:
            draw = load.seed + 1_000 + turn
            starts = poisson_starts(rate=load.label_rate, seconds=seconds, seed=draw)
            posts = [
                put_label(f"load-{turn}-{number}", f"{text} {number}")
                for number, text in enumerate(islice(queries, len(starts)))
            ]
            streams.append(Stream(name=LABELS, requests=posts, starts=starts))
        outcomes = drive(server.port, streams)
        (writing if turn % 2 else quiet).extend(outcomes[PREDICT].latencies)
        if LABELS in outcomes:
            labels += outcomes[LABELS].latencies
        for outcome in outcomes.values():
            for reason, count in outcome.failures.items():
                failures[reason] = failures.get(reason, 0) + count
    return WhileWriting(quiet=quiet, writing=writing, labels=labels, failures=failures)


def single_labels(server: Server, queries: Iterator[str], *, count: int) -> list[float]:
    """Post labels one after the other; some are looked up to see that 200 means visible."""
    connection, seconds = Connection(server.port), []
    for number, text in enumerate(islice(queries, count)):
        label_id = f"single-{number}"
        request = put_label(label_id, f"{text} {number}")
        start = perf_counter()
        answer = connection.ask(request)
        seconds.append(perf_counter() - start)
        require(answer)
        if number % _CHECKED == 0:
            shown: Any = require(connection.ask(get(f"/labels/{label_id}")))
            assert shown["text"] == f"{text} {number}", "a label was answered before it was visible"
    connection.close()
    return seconds
