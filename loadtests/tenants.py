"""`python -m loadtests.tenants`: what a tenant notices of a hostile one.

Two tenants have a thousand labels each. One asks queries in an open loop, first alone, then during
each kind of traffic of the other: ordinary queries without pause, costly rules, rules with dates,
filters, long queries, labels of one text, and streams of labels. Writes tenants.json and
tenants.md. The other tenant's clients use the same cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import islice
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import orjson

from loadtests.attacks.attackers import repeat
from loadtests.attacks.rounds import attacking, disturbed_row
from loadtests.clients.connection import (
    Connection,
    RequestFailed,
    post,
    post_bytes,
    predict,
    require,
)
from loadtests.clients.open_loop import Outcome, drive
from loadtests.harness import Scenario, command, said, say
from loadtests.report import Row
from loadtests.traffic import Load
from service.child_server import Server
from service.command_line import run
from service.core.tenant import Tenant
from service.http.access import new_key
from service.settings import API_KEYS_VARIABLE

RATIO = 2.0  # p99 during an attack, relative to the quiet round
LABELS = 1_000  # of each tenant
RULES = 10_000
CLIENTS = 4  # of the hostile tenant
_FIELD = "shop"


@dataclass(frozen=True, kw_only=True)
class Tenants(Scenario):
    """Two tenants of one server, each with the bundle's texts as its labels."""

    title = "Tenants"
    judged = True

    rate: Annotated[float, said("Predictions per second of the quiet tenant.")] = 20.0
    seconds: Annotated[float, said("Duration of each round.")] = 10.0

    def rows(self) -> Iterator[Row]:
        """Measure a quiet round and one during the attack, for each attack."""
        texts, load = self.texts(), Load(rate=self.rate, seconds=self.seconds, seed=self.seed)
        with TemporaryDirectory(prefix="keymatch-keys-") as folder:
            keys = _keys(Path(folder) / "api-keys")
            with self.server() as server:
                for key in keys.values():
                    labels = [
                        {"id": f"{n}", "text": text} for n, text in enumerate(islice(texts, LABELS))
                    ]
                    with Connection(server.port) as connection:
                        posted = _with_key(post("/labels", {"labels": labels}), key)
                        require(connection.ask(posted))
                _round(server, texts, keys["quiet"], replace(load, seconds=5.0))  # warms up
                for turn, name in enumerate(ATTACKS):
                    say(f"{name} ...")
                    quiet = _round(server, texts, keys["quiet"], load, turn=2 * turn)
                    with attacking(_attack, name, server.port, keys["hostile"]):
                        beside = _round(server, texts, keys["quiet"], load, turn=2 * turn + 1)
                    what = f"{name}: the other tenant's p99"
                    yield disturbed_row(what, quiet, beside, ratio=RATIO, goal="all answered")


def _keys(file: Path) -> dict[str, str]:
    """Write a file with a key for each tenant, which the server will read; return the keys."""
    keys, lines = dict[str, str](), list[str]()
    for name in ("quiet", "hostile"):
        keys[name], line = new_key(name, ["read", "write"], tenant=Tenant(_FIELD, name))
        lines.append(line)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.environ[API_KEYS_VARIABLE] = str(file)
    return keys


def _with_key(request: bytes, key: str) -> bytes:
    return request.replace(b"\r\n", f"\r\nAuthorization: Bearer {key}\r\n".encode(), 1)


def _round(server: Server, texts: Iterator[str], key: str, load: Load, *, turn: int = 0) -> Outcome:
    stream = load.predictions(texts, turn=turn)
    requests = [_with_key(request, key) for request in stream.requests]
    return drive(server.port, [replace(stream, requests=requests)])[stream.name]


# What the hostile tenant does ------------------------------------------------------------------

Requests = Callable[[Callable[[str, Any], Any]], Sequence[bytes]]


def _common_rules(ask: Callable[[str, Any], Any]) -> Sequence[bytes]:
    """Ten rules without condition pin a thousand labels each, and ten thousand share a word."""
    pins = [{"id": f"{number}", "position": number + 1} for number in range(LABELS)]
    ask("/rules", {"rules": [{"id": f"p{n}", "then": {"pin": pins}} for n in range(8)]})
    for first in range(0, RULES, 1_000):
        rules = [
            {
                "id": f"w{number}",
                "when": {"query": f"lamp w{number}", "match": "contains"},
                "then": {"hide": ["1"]},
            }
            for number in range(first, first + 1_000)
        ]
        ask("/rules", {"rules": rules})
    words = " ".join(f"w{number}" for number in range(300))
    return [predict(f"lamp {words} {client}") for client in range(CLIENTS)]


def _dated_rules(ask: Callable[[str, Any], Any]) -> Sequence[bytes]:
    """Eight thousand rules expire one after the other; further ones are posted."""
    now = datetime.now(UTC)
    for first in range(0, 8_000, 1_000):
        rules = [
            {
                "id": f"d{number}",
                "when": {"query": f"campaign {number}", "match": "exact"},
                "expires_at": (now + timedelta(seconds=5 + number / 500)).isoformat(),
                "then": {"hide": ["1"]},
            }
            for number in range(first, first + 1_000)
        ]
        ask("/rules", {"rules": rules})
    late = (now + timedelta(days=1)).isoformat()
    rule = {"id": "again", "when": {"query": "x", "match": "exact"}, "then": {"hide": ["1"]}}
    return [
        post("/rules", {"rules": [{**rule, "expires_at": late}]}),
        post("/rules", {"rules": [{**rule, "starts_at": late}]}),
    ]


def _filters(ask: Callable[[str, Any], Any]) -> Sequence[bytes]:
    """Filters with a thousand conditions on fields that no label has."""
    return [
        post("/predict", {"queries": ["lamp"], "filter": {"any": _conditions(client)}})
        for client in range(CLIENTS)
    ]


def _conditions(client: int) -> list[dict[str, Any]]:
    return [{"field": f"field {client} {number}", "eq": number} for number in range(1_000)]


def _words(ask: Callable[[str, Any], Any]) -> Sequence[bytes]:
    """Queries of many misspelled words, none asked twice."""
    return [
        predict(" ".join(f"lmap{turn}x wordd{number}" for number in range(100)))
        for turn in range(CLIENTS * 500)
    ]


def _ids(ask: Callable[[str, Any], Any]) -> Sequence[bytes]:
    """Labels of one text without ids, posted again and again."""
    labels = [{"id": f"same {number}", "text": "gift card"} for number in range(1_000)]
    ask("/labels", {"labels": labels})
    without = [{"text": f"gift card {number}"} for number in range(200)]
    return [post("/labels", {"labels": without})] * 2


def _streams(ask: Callable[[str, Any], Any]) -> Sequence[bytes]:
    """Streams of labels with texts that change."""
    lines = (
        orjson.dumps({"id": f"s{number % 50}", "text": ",".join(f"t{number}{n}" for n in range(9))})
        for number in range(2_000)
    )
    body = b"\n".join(lines)
    return [post_bytes("/labels", body, media_type="application/x-ndjson")]


def _queries(ask: Callable[[str, Any], Any]) -> Sequence[bytes]:
    """Ordinary queries, as fast as they are answered."""
    return [predict(f"lamp {turn}") for turn in range(CLIENTS * 500)]


ATTACKS: Mapping[str, Requests] = {
    "queries": _queries,
    "filters": _filters,
    "words": _words,
    "ids": _ids,
    "dated rules": _dated_rules,
    "costly rules": _common_rules,
    "streams": _streams,
}


def _attack(name: str, port: int, key: str, begun: Event, ended: Event) -> None:
    with Connection(port) as connection:
        requests = ATTACKS[name](
            lambda path, body: require(connection.ask(_with_key(post(path, body), key)))
        )
        requests = [_with_key(request, key) for request in requests]
        status, answer = connection.ask(requests[0])
        if status != HTTPStatus.OK:  # such an attack would show nothing
            raise RequestFailed(f"the attack {name} is refused: {answer[:300]!r}")
    begun.set()
    repeat(port, ended, requests, clients=min(CLIENTS, len(requests)))


app = command(Tenants)

if __name__ == "__main__":
    sys.exit(run(app))
