"""`python -m loadtests.tenants`: what a tenant notices of a hostile one.

Two tenants have a thousand labels each. One asks queries in an open loop, first alone, then during
each kind of traffic of the other: ordinary queries without pause, costly rules, rules with dates,
filters, long queries, labels of one text, and streams of labels. Both rounds are compared as by
`loadtests.attacks`. Writes tenants.json and tenants.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from loadtests.attackers import repeat
from loadtests.attacks import Disturbance
from loadtests.connection import (
    Connection,
    body_of,
    post,
    post_bytes,
    predict,
    require,
    with_key,
)
from loadtests.harness import option
from loadtests.report import Row
from service.core.tenant import Tenant
from service.http.access import new_key
from service.settings import API_KEYS_VARIABLE

RATIO = 2.0  # p99 during an attack, relative to the quiet round
LABELS = 1_000  # of each tenant
RULES = 10_000
CLIENTS = 4  # of the hostile tenant
_FIELD = "shop"

Ask = Callable[[str, Any], Any]  # posts a document to a path
Requests = Callable[[Ask], Sequence[bytes]]  # prepares an attack, and returns what it repeats


@dataclass(frozen=True, kw_only=True)
class Tenants(Disturbance):
    """Two tenants of one server, each with the bundle's texts as its labels."""

    title = "Tenants"

    rate: float = option("Predictions per second of the quiet tenant.", 20.0)

    def rows(self) -> Iterator[Row]:
        """Post both tenants' labels, then disturb one by the other."""
        texts = self.texts()
        with TemporaryDirectory(prefix="keymatch-keys-") as folder:
            quiet, hostile = _keys(Path(folder) / "api-keys")
            with self.server() as server:
                for key in (quiet, hostile):
                    with Connection(server.port) as connection:
                        ask = _asking(connection, key)
                        some = enumerate(islice(texts, LABELS))
                        ask("/labels", {"labels": [{"id": f"{n}", "text": one} for n, one in some]})
                attacks = {name: partial(_attack, name, hostile) for name in ATTACKS}
                yield from self.disturbed(server, attacks, ratio=RATIO, key=quiet)


def _keys(file: Path) -> tuple[str, str]:
    """Write a file with a key for each tenant, which the server will read; return the keys."""
    (quiet, first), (hostile, second) = (
        new_key(name, ["read", "write"], tenant=Tenant(_FIELD, name))
        for name in ("quiet", "hostile")
    )
    file.write_text(f"{first}\n{second}\n", encoding="utf-8")
    os.environ[API_KEYS_VARIABLE] = str(file)
    return quiet, hostile


def _asking(connection: Connection, key: str) -> Ask:
    """Return a function that posts a document with an API key; any status but 200 is an error."""
    return lambda path, body: require(connection.ask(with_key(post(path, body), key)))


# What the hostile tenant does ------------------------------------------------------------------


def _post_rules(ask: Ask, rules: Sequence[Any]) -> None:
    for first in range(0, len(rules), 1_000):
        ask("/rules", {"rules": rules[first : first + 1_000]})


def _hiding(rule_id: str, query: str, match: str = "exact", **dates: str) -> dict[str, Any]:
    """Return a rule that hides a label for a query."""
    when = {"query": query, "match": match}
    return {"id": rule_id, "when": when, "then": {"hide": ["1"]}, **dates}


def _common_rules(ask: Ask) -> Sequence[bytes]:
    """Eight rules without condition pin a thousand labels each, and ten thousand share a word."""
    pins = [{"id": f"{number}", "position": number + 1} for number in range(LABELS)]
    _post_rules(ask, [{"id": f"p{n}", "then": {"pin": pins}} for n in range(8)])
    _post_rules(ask, [_hiding(f"w{n}", f"lamp w{n}", "contains") for n in range(RULES)])
    words = " ".join(f"w{number}" for number in range(300))
    return [predict(f"lamp {words} {client}") for client in range(CLIENTS)]


def _dated_rules(ask: Ask) -> Sequence[bytes]:
    """Eight thousand rules expire one after the other; further ones are posted."""
    for first in range(0, 8_000, 1_000):
        now = datetime.now(UTC)  # of each post: none is refused because earlier ones took long
        some = range(first, first + 1_000)
        ends = [(now + timedelta(seconds=5 + n / 500)).isoformat() for n in some]
        of_some = zip(some, ends, strict=True)
        _post_rules(ask, [_hiding(f"d{n}", f"campaign {n}", expires_at=end) for n, end in of_some])
    late = (now + timedelta(days=1)).isoformat()
    again = [_hiding("again", "x", **{date: late}) for date in ("expires_at", "starts_at")]
    return [post("/rules", {"rules": [rule]}) for rule in again]


def _filters(ask: Ask) -> Sequence[bytes]:
    """Filters with a thousand conditions on fields that no label has."""
    filters = [
        {"any": [{"field": f"field {client} {number}", "eq": number} for number in range(1_000)]}
        for client in range(CLIENTS)
    ]
    return [post("/predict", {"queries": ["lamp"], "filter": one}) for one in filters]


def _words(ask: Ask) -> Sequence[bytes]:
    """Queries of many misspelled words, none asked twice."""
    return [
        predict(" ".join(f"lmap{turn}x wordd{number}" for number in range(100)))
        for turn in range(CLIENTS * 500)
    ]


def _ids(ask: Ask) -> Sequence[bytes]:
    """Labels of one text without ids, posted again and again."""
    labels = [{"id": f"same {number}", "text": "gift card"} for number in range(1_000)]
    ask("/labels", {"labels": labels})
    without = [{"text": f"gift card {number}"} for number in range(200)]
    return [post("/labels", {"labels": without})] * 2


def _streams(ask: Ask) -> Sequence[bytes]:
    """Streams of labels with texts that change."""
    lines = (
        orjson.dumps({"id": f"s{number % 50}", "text": ",".join(f"t{number}{n}" for n in range(9))})
        for number in range(2_000)
    )
    body = b"\n".join(lines)
    return [post_bytes("/labels", body, media_type="application/x-ndjson")]


def _queries(ask: Ask) -> Sequence[bytes]:
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


def _attack(name: str, key: str, port: int, begun: Event, ended: Event) -> None:
    with Connection(port) as connection:
        requests = [with_key(one, key) for one in ATTACKS[name](_asking(connection, key))]
        body_of(connection.ask(requests[0]))  # an attack that is refused would show nothing
    begun.set()
    repeat(port, ended, requests, clients=min(CLIENTS, len(requests)))


if __name__ == "__main__":
    Tenants.command()
