"""The clients of a soak: each sends one request at a time, at a given rate, until it is stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from threading import Event, Thread
from time import perf_counter

from loadtests.clients.connection import Connection, RequestFailed, delete, get, post, predict
from loadtests.soak.ledger import Ask, Ledger, Refused, Write
from service.core.changes import (
    DeleteInstance,
    DeleteLabel,
    DeleteRule,
    PutInstance,
    PutLabel,
    PutRule,
)

LABELS = 400  # per writer of labels; each label is written repeatedly
CLICKED = 400  # queries per writer of clicks
LABELS_A_REQUEST = 4
RULES = 100  # per writer of rules; each rule is written repeatedly
DELETE_EVERY = 10  # every tenth request deletes a label or a rule, or unlearns its own click
BOOSTS = (1.0, 2.5, 1.0, 0.5)  # of the labels of one request
LONG_AGO = "2020-01-01T00:00:00Z"
FAR_FUTURE = "2099-12-31T00:00:00Z"

Turn = Callable[[Ask, int], None]  # sends the n-th request, and records what was acknowledged


class Client(Thread):
    """Calls `turn` `rate` times per second; counts broken connections and reconnects."""

    def __init__(self, name: str, turn: Turn, *, port: int, rate: float, stop: Event) -> None:
        """Send to `port` from `start` on, until `stop` is set."""
        super().__init__(name=name, daemon=True)
        self.answers: Counter[str] = Counter()  # HTTP status or error name -> count
        self.slowest = 0.0  # seconds of the slowest answer
        self._turn, self._port = turn, port
        self._pause, self._stop_asked = 1 / rate, stop

    def run(self) -> None:
        """Send until asked to stop."""
        connection: Connection | None = None
        for number in count():
            if self._stop_asked.wait(self._pause):
                break
            try:
                connection = connection or Connection(self._port)
                self._turn(self._counted(connection), number)
            except Refused:
                continue  # already counted; the connection still works
            except (OSError, RequestFailed) as error:
                self.answers[type(error).__name__] += 1
                if connection is not None:
                    connection.close()
                    connection = None
        if connection is not None:
            connection.close()

    def _counted(self, connection: Connection) -> Ask:
        def ask(request: bytes) -> tuple[int, bytes]:
            began = perf_counter()
            status, body = connection.ask(request)
            self.slowest = max(self.slowest, perf_counter() - began)
            self.answers[str(status)] += 1
            if status != 200:
                raise Refused(f"status {status}: {body[:300]!r}")
            return status, body

        return ask


def read(queries: Iterator[str]) -> Turn:
    """Predict one query per request; every now and then eight queries with evidence."""

    def turn(ask: Ask, number: int) -> None:
        if number % 20:
            ask(predict(next(queries)))
        else:
            eight = [next(queries) for _ in range(8)]
            ask(post("/predict", {"queries": eight, "explain": True, "deadline_ms": 10_000}))

    return turn


def write_labels(ledger: Ledger, queries: Iterator[str], *, owner: str) -> Turn:
    """Create and replace labels with aliases and queries, some with dates; delete some."""

    def turn(ask: Ask, number: int) -> None:
        if number % DELETE_EVERY == DELETE_EVERY - 1:
            # The previous request has put this label, so it exists.
            label_id = f"{owner}-{(number - 1) * LABELS_A_REQUEST % LABELS}"
            write = Write(kind=DeleteLabel.kind, subject=label_id)
            ledger.write(ask, delete(f"/labels/{label_id}"), [write])
            return
        labels = [
            {
                "id": f"{owner}-{(number * LABELS_A_REQUEST + place) % LABELS}",
                "text": f"{next(queries)} {owner} {number}",
                "aliases": [f"{owner}-{number}-{place}"],
                "queries": [f"{next(queries)} {number}"],
                "boost": BOOSTS[place],
                **({"expires_at": FAR_FUTURE} if place == 0 else {}),
            }
            for place in range(LABELS_A_REQUEST)
        ]
        writes = [
            Write(
                kind=PutLabel.kind,
                subject=str(label["id"]),
                text=str(label["text"]),
                weight=boost,
            )
            for label, boost in zip(labels, BOOSTS, strict=True)
        ]
        ledger.write(ask, post("/labels", {"labels": labels}), writes)

    return turn


def write_clicks(ledger: Ledger, *, owner: str) -> Turn:
    """Create a label, then click it for queries; a query repeats after `CLICKED` others.

    Every pass over the queries clicks another label, so each click adds information. Some of the
    clicks are negative pairs, some have a time, and some are unlearned at once.
    """

    def turn(ask: Ask, number: int) -> None:
        round_number, place = divmod(number, CLICKED + 1)
        label_id = f"{owner}-clicked-{round_number}"
        if place == 0:
            label = {"id": label_id, "text": label_id}
            request = post("/labels", {"labels": [label]})
            write = Write(kind=PutLabel.kind, subject=label_id, text=label_id)
        else:
            query, negative = f"{owner} query {place}", place % 4 == 0
            instance = {"query": query, "labels": [label_id]}
            more = {"negative": negative, **({"at": LONG_AGO} if place % 3 == 0 else {})}
            request = post("/instances", {"instances": [{**instance, **more}]})
            write = Write(kind=PutInstance.kind, subject=query, weight=-1.0 if negative else 1.0)
        ledger.write(ask, request, [write])
        if place and place % DELETE_EVERY == 0:
            write = Write(kind=DeleteInstance.kind, subject=query)
            ledger.write(ask, delete("/instances", {"instances": [instance]}), [write])

    return turn


def write_rules(ledger: Ledger, queries: Iterator[str], *, owner: str) -> Turn:
    """Create and replace rules that boost labels for one query each; delete some."""

    def turn(ask: Ask, number: int) -> None:
        if number % DELETE_EVERY == DELETE_EVERY - 1:
            # The previous request has put this rule, so it exists.
            rule_id = f"{owner}-rule-{(number - 1) % RULES}"
            write = Write(kind=DeleteRule.kind, subject=rule_id)
            ledger.write(ask, delete(f"/rules/{rule_id}"), [write])
            return
        rule_id, query = f"{owner}-rule-{number % RULES}", f"{next(queries)} {number}"
        rule = {
            "id": rule_id,
            "when": {"query": query, "match": "exact"},
            "then": {"boost": {"factor": 2.0, "filter": {"all": [{"field": "x", "exists": True}]}}},
        }
        write = Write(kind=PutRule.kind, subject=rule_id, text=query)
        ledger.write(ask, post("/rules", {"rules": [rule]}), [write])

    return turn


def operate(ask: Ask, number: int) -> None:
    """Send the requests of probes and dashboards."""
    paths = ("/health/ready", "/metrics", "/info", "/labels?limit=50")
    ask(get(paths[number % len(paths)]))
