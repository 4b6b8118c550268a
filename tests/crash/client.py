"""A client that sends random writes and reads, and records the answers in a ledger."""

import http.client
import random
import threading
from collections.abc import Sequence
from time import monotonic, sleep, time
from typing import Any

import httpx
import orjson

from service.core import times
from service.core.changes import DeleteItem, DeleteLabel, DeleteRule
from tests.crash.ledger import (
    Fact,
    Form,
    Ledger,
    Outcome,
    Pending,
    acts_on,
    change,
    click,
    delete,
    has_started,
    named_labels,
    put,
    put_item,
    put_rule,
    shown,
)
from tests.support.http.problems import assert_problem
from tests.support.http.streaming import Streamer, streaming

RETRY_SECONDS = 0.05
PATIENCE_SECONDS = 40.0  # for which a patient client repeats a write

WORDS = (
    "alpine", "boots", "camping", "down", "ember", "fuel", "glacier", "hood", "ice", "jacket",
    "kettle", "lamp", "mat", "needle", "ozone", "pole", "quilt", "rope", "stove", "tent",
    "ultra", "vest", "winter", "yak", "zip",
)  # fmt: skip
PAST, FUTURE, FAR_FUTURE = 1_500_000_000_000_000, 4_000_000_000_500_000, 4_100_000_000_000_000
SOON = 3.0  # seconds until a label or rule starts, at most
SHOPS = ("north", "south", "web")
FILTERS = (
    {"all": [{"field": "price", "lt": 30}, {"field": "shop", "exists": True}]},
    {"any": [{"field": "tags", "in": ["new", "sale"]}, {"field": "shop", "eq": "web"}]},
    {"none": [{"field": "sold", "eq": True}, {"all": [{"field": "price", "gte": 20.5}]}]},
)
GONE = (httpx.TransportError, http.client.HTTPException, OSError)
HABITS = {
    "put": 30,
    "put_again": 10,
    "delete": 8,
    "merge": 5,
    "click": 12,
    "unlearn": 8,
    "put_rules": 8,
    "delete_rule": 3,
    "put_items": 10,
    "delete_item": 5,
    "stream": 5,
    "repeat": 5,
    "look": 30,
}


class Refused(Exception):
    """The service ended a stream because it cannot write the log, which may hold some lines."""


class Client:
    """Writes to the labels, items and rules of one ledger, and reads what it has written.

    With `patience`, each write has an idempotency key and is repeated after a 503, as clients
    should do. Without it, a 503 fails the test.
    """

    def __init__(self, ledger: Ledger, *, seed: str, patience: bool = False) -> None:
        self.ledger = ledger
        self.habits = HABITS  # relative frequency of each action
        self.dates_pass = True  # whether some labels and rules start soon
        self.writes = self.refused = 0
        # Times of queries that were refused because of missing shards; None: that fails the test.
        self.without_shards: list[float] | None = None
        self._random = random.Random(seed)
        self._patience = patience
        self._keys = 0
        self._version = 0  # the newest version in an answer to this client
        self._answered: list[tuple[dict[str, Any], Any]] = []  # with an idempotency key
        self._unanswered: dict[str, Any] | None = None

    def run(self, port: int, stop: threading.Event, also: Sequence[int] = ()) -> None:
        """Write to `port`, read from it and `also`, until `stop` is set or the server is gone."""
        self._port, self._others, self._stop = port, list(also), stop
        with httpx.Client(timeout=60) as self._http:
            names, weights = zip(*self.habits.items(), strict=True)
            try:
                while not stop.is_set():
                    [name] = self._random.choices(names, weights)
                    getattr(self, f"_{name}")()
            except GONE:
                self._others = []

    # Requests ----------------------------------------------------------------------------

    def resume(self, port: int, outcome: Outcome | None) -> None:
        """After a restart, repeat the unanswered request and an answered one, if they have a key.

        The ledger's next `settle` fails if a repeated request was lost or carried out twice.
        """
        self._port = port
        with httpx.Client(timeout=60) as self._http:
            request, self._unanswered = self._unanswered, None
            if request is not None and outcome is not None:
                answer = self._ask(**request)
                told, changes = outcome.told, outcome.pending.changes
                if outcome.version is None:
                    told = self.ledger.acknowledge(changes, version=answer["version"])
                else:
                    assert answer["version"] == outcome.version
                _assert_told(answer, changes, told)
                self._answered.append((request, answer))
            self._repeat()

    def _write(self, method: str, path: str, changes: Sequence[Fact], document: Any = None) -> None:
        """Send a write, and check that its answer is the one that the ledger expects."""
        request: dict[str, Any] = {"method": method, "path": path, "document": document}
        keyed = self._patience or self._random.random() < 0.5
        if keyed:
            self._keys += 1
            request["key"] = f"{self.ledger.owner}:{self._keys}"
        # An earlier unanswered request is not repeated: `settle` looks in the log for its events.
        self._unanswered = request if keyed else None
        self.ledger.pending = Pending(changes=changes, whole=True)
        answer = self._ask(**request)
        self.ledger.pending = None
        told = self.ledger.acknowledge(changes, version=answer["version"])
        _assert_told(answer, changes, told)
        if keyed:
            self._answered.append((request, answer))
            self._unanswered = None
        self._version = max(self._version, answer["version"])
        self.writes += 1

    def _repeat(self) -> None:
        """Repeat an answered request, which must get the same answer."""
        for request, answer in self._some(self._answered, 1):
            assert self._ask(**request) == answer

    def _ask(self, **request: Any) -> Any:
        """Return the answer to a write. A patient client repeats it while the answer is 503."""
        late = monotonic() + PATIENCE_SECONDS
        while True:
            answer = self._send(**request)
            if answer.status_code != 503 or not self._patience:
                assert answer.status_code == 200, answer.text
                return answer.json()
            assert_problem(answer, 503)
            assert monotonic() < late, answer.text
            self.refused += 1
            sleep(RETRY_SECONDS)

    def _send(
        self, method: str, path: str, document: Any = None, key: str | None = None
    ) -> httpx.Response:
        how: dict[str, Any] = {} if document is None else {"json": document}
        if key is not None:
            how["headers"] = {"Idempotency-Key": key}
        return self._http.request(method, f"http://127.0.0.1:{self._port}{path}", **how)

    def _some(self, among: Sequence[Any], count: int) -> list[Any]:
        return self._random.sample(among, min(count, len(among)))

    # Writes ------------------------------------------------------------------------------

    def _put(self) -> None:
        """Put one or several labels: new or changed, with or without queries."""
        count = self._random.choice((1, 1, 1, 2, 5, 8))
        self._put_forms([self._form(label_id) for label_id in self._some(self.ledger.ids, count)])

    def _put_again(self) -> None:
        """Put a label again, unchanged or with different metadata, dates and boost."""
        for form in self._some(list(self.ledger.expected.forms.values()), 1):
            if self._random.random() < 0.7:
                names = ("id", "text", "aliases", "queries")
                kept = {name: form[name] for name in names if name in form}
                form = {**kept, "metadata": {"note": self._text()}, **self._dates_and_boost()}
            self._put_forms([form])

    def _put_forms(self, forms: Sequence[Form]) -> None:
        labels = [shown(form) for form in forms]
        self._write("POST", "/labels", [put(form) for form in forms], {"labels": labels})

    def _merge(self) -> None:
        """Change metadata of a label or of several, and perhaps dates, boost and queries."""
        count = self._random.choice((1, 1, 2, 5))
        changes: list[Fact] = []
        documents: list[dict[str, Any]] = []
        for form in self._some(list(self.ledger.expected.forms.values()), count):
            note, given = {"note": self._text()}, self._dates_and_boost()
            merged = {**form, **given, "metadata": {**form["metadata"], **note}}
            document = {"id": form["id"], **shown(given), "metadata": note}
            if self._random.random() < 0.7:
                changes.append(change(merged))
            else:
                query = self._text()
                queries = list(dict.fromkeys((*form["queries"], query)))
                changes.append(put({**merged, "queries": queries}))
                document["queries"] = [query]
            documents.append(document)
        if len(documents) == 1:
            [document] = documents
            label_id = document.pop("id")
            self._write("PATCH", f"/labels/{label_id}", changes, document)
        elif documents:
            self._write("PATCH", "/labels", changes, {"labels": documents})

    def _delete(self) -> None:
        label_id = self._random.choice(self.ledger.ids)
        if label_id in self.ledger.expected.forms:
            self._write("DELETE", f"/labels/{label_id}", [delete(DeleteLabel, label_id)])
        elif not self._patience:
            assert_problem(self._send("DELETE", f"/labels/{label_id}"), 404)

    def _click(self) -> None:
        """Click labels for queries, or reject them; sometimes for a query of the bundle."""
        held = list(self.ledger.expected.forms)
        if not held:
            return
        chance, clicks = self._random, []
        queries = {f"{self.ledger.owner} {self._text()}" for _ in range(chance.choice((1, 3)))}
        if chance.random() < 0.2:
            queries.update(self._some(self.ledger.trained, 1))
        for query in queries:
            clicked = self._some(held, chance.randint(1, 3))
            weight = chance.choice((1.0, 1.0, 0.3, 4.0, -1.0, -0.3))
            at = chance.choice((None, None, 1_700_000_000_000_000, 1_750_000_000_000_000))
            clicks.append(click(query, clicked, weight, at))
        instances = []
        for one in clicks:
            weight = one.body.get("weight", 1.0)
            sign = {"negative": True} if weight < 0 else {}
            instances.append({**shown(one.body), "weight": abs(weight), **sign})
        self._write("POST", "/instances", clicks, {"instances": instances})

    def _unlearn(self) -> None:
        """Unlearn pairs: clicks, labels' queries, those of the bundle, and some never learned."""
        expected, pairs = self.ledger.expected, dict[str, list[str]]()
        known = {*expected.clicks, *expected.trained}
        known.update(query for form in expected.forms.values() for query in form["queries"])
        for query in self._some(sorted(known), self._random.choice((1, 1, 3))):
            learned = expected.learned(query, list(expected.forms))
            others = self._some(list(expected.forms), self._random.choice((0, 1)))
            labels = [*self._some(learned, self._random.randint(1, 2)), *others]
            pairs[query] = list(dict.fromkeys(labels))
        changes = [expected.unlearn(query, labels) for query, labels in pairs.items()]
        instances = [{"query": query, "labels": labels} for query, labels in pairs.items()]
        if instances:
            document = {"instances": instances, "trained": True}
            self._write("DELETE", "/instances", changes, document)

    def _put_rules(self) -> None:
        """Put new, changed or unchanged rules. A rule may only be put while its labels exist."""
        ids = self._some(self.ledger.rule_ids, self._random.choice((1, 1, 3)))
        forms = [self._rule(rule_id) for rule_id in ids]
        if self._random.random() < 0.2:
            held = {
                rule_id: rule
                for rule_id, rule in self.ledger.expected.rules.items()
                if named_labels(rule) <= self.ledger.expected.forms.keys()
            }
            forms = [held.get(form["id"], form) for form in forms]
        document = {"rules": [shown(form) for form in forms]}
        self._write("POST", "/rules", [put_rule(form) for form in forms], document)

    def _delete_rule(self) -> None:
        [rule_id] = self._some(self.ledger.rule_ids, 1)
        if rule_id in self.ledger.expected.rules:
            self._write("DELETE", f"/rules/{rule_id}", [delete(DeleteRule, rule_id)])
        elif not self._patience:
            assert_problem(self._send("DELETE", f"/rules/{rule_id}"), 404)

    def _put_items(self) -> None:
        """Put new, changed or unchanged items. Sometimes one is invalid and all must be refused."""
        ids = self._some(self.ledger.item_ids, self._random.choice((1, 1, 3)))
        items = [put_item(item_id, self._text()) for item_id in ids]
        if items and self._random.random() < 0.2:
            known = self.ledger.expected.items
            items = [put_item(item_id, known.get(item_id, self._text())) for item_id in ids]
        bodies = [item.body for item in items]
        if items and self._random.random() < 0.2 and not self._patience:
            refused = [*bodies, {"id": "of nobody", "text": " "}]
            answer = self._send("POST", "/items", {"items": refused})
            assert_problem(answer, 422, field=f"items.{len(items)}.text")
        elif items:
            self._write("POST", "/items", items, {"items": bodies})

    def _delete_item(self) -> None:
        for item_id in self._some(self.ledger.item_ids, 1):
            if item_id in self.ledger.expected.items:
                self._write("DELETE", f"/items/{item_id}", [delete(DeleteItem, item_id)])
            elif not self._patience:
                assert_problem(self._send("DELETE", f"/items/{item_id}"), 404)

    # Streams -----------------------------------------------------------------------------

    def _stream(self) -> None:
        """Stream labels. If the service refuses, send the unanswered lines in another stream."""
        count = self._random.randint(3, 40)
        # If lines are repeated, ids must be distinct: a label's older form could be written last.
        ids = self._some(self.ledger.ids, count) if self._patience else self.ledger.ids
        forms = [self._form(self._random.choice(ids)) for _ in range(count)]
        if self._patience:
            forms = list({form["id"]: form for form in forms}.values())
        lines, uncertain = [put(form) for form in forms], False
        while lines:
            try:
                with streaming(self._port) as stream:
                    self._send_lines(stream, lines, uncertain=uncertain)
            except Refused:
                self.refused += 1
                uncertain = True
                sleep(RETRY_SECONDS)
        self.ledger.pending = None

    def _send_lines(self, stream: Streamer, lines: list[Fact], *, uncertain: bool) -> None:
        """Send lines in groups of 5 or 50, and remove each line when it is answered."""
        size = self._random.choice((5, 50))
        while lines:
            self.ledger.pending = Pending(changes=tuple(lines), whole=False)
            sent = lines[:size]
            for line in sent:
                stream.send(orjson.dumps(shown(line.body)) + b"\n")
            for line in sent:
                self._line_answered(stream, line, uncertain=uncertain)
                del lines[0]
                self.ledger.pending = Pending(changes=tuple(lines), whole=False)
        stream.end()
        assert stream.rest() == []

    def _line_answered(self, stream: Streamer, line: Fact, *, uncertain: bool) -> None:
        if stream.answer.status == 503 and self._patience:
            raise Refused
        assert stream.answer.status == 200, stream.answer.read()
        content = stream.answer.readline()
        if not content.endswith(b"\n"):
            raise http.client.IncompleteRead(content)
        answer = orjson.loads(content)
        if self._patience and answer.get("error", {}).get("status") == 503:
            raise Refused
        version = answer["version"]
        told = self.ledger.acknowledge([line], version=version, exact=False)
        allowed = {*told, "unchanged"} if uncertain else {*told}
        assert answer["id"] == line.body["id"] and answer["status"] in allowed, answer
        self._version = max(self._version, version)
        self.writes += 1

    # Reads -------------------------------------------------------------------------------

    def _look(self) -> None:
        """Check that a server shows this client's acknowledged writes and nothing they replaced."""
        port = self._random.choice([self._port, *self._others])
        try:
            self._look_at(f"http://127.0.0.1:{port}")
        except GONE:
            if port == self._port:
                raise
            self._others.remove(port)

    def _look_at(self, place: str) -> None:
        question = {
            "queries": [self._text()],
            "explain": True,
            "top_k": 50,
            "depth": 100,
            "min_version": self._version,
            "deadline_ms": 60_000,
        }
        for item_id in self._some(self.ledger.item_ids, self._random.choice((0, 1))):
            if item_id in self.ledger.expected.items:
                question["items"] = [item_id]
            else:
                by_name = self._predict(place, {**question, "items": [item_id]})
                if by_name.status_code == 200:  # the id is the text of another client's item
                    [item] = by_name.json()["results"][0]["items"]
                    assert item["id"] != item_id and item["text"] == item_id
                else:
                    assert_problem(by_name, 422, field="items.0")
        since = times.now()
        answer = self._predict(place, question)
        assert answer.status_code == 200, answer.text
        assert answer.json()["version"] >= self._version
        [result] = answer.json()["results"]
        self._check_keywords(result)
        self._check_rules(result, since)
        self.check_label(place, self._random.choice(self.ledger.ids), self._http)
        self.check_rule(place, self._random.choice(self.ledger.rule_ids), self._http)

    def _predict(self, place: str, question: dict[str, Any]) -> httpx.Response:
        """Ask a query again while it is refused because of missing shards, if that may happen."""
        while True:
            answer = self._http.post(f"{place}/predict", json=question)
            if answer.status_code != 503 or self.without_shards is None:
                return answer
            assert answer.json()["title"] == "Shards unavailable", answer.text
            self.without_shards.append(time())
            sleep(RETRY_SECONDS)

    def _check_keywords(self, result: dict[str, Any]) -> None:
        for keyword in result["keywords"]:
            if keyword["id"] in self.ledger.ids:
                label = self.ledger.expected.label(keyword["id"])
                assert label is not None, f"{keyword['id']} was deleted"
                for fact in ("text", "metadata", "novel"):
                    assert keyword[fact] == label[fact], (keyword, label)
                form = self.ledger.expected.forms[keyword["id"]]
                assert has_started(form, times.now()), f"{keyword['id']} has not started"

    def _check_rules(self, result: dict[str, Any], since: int) -> None:
        """Check that exactly the rules acted that should, and that what they hide is not there."""
        acted = result.get("rules", ())
        found = {keyword["id"] for keyword in result["keywords"]}
        for rule_id in self.ledger.rule_ids:
            rule = self.ledger.expected.rules.get(rule_id, {})
            holds = bool(rule) and acts_on(rule, result["query"])
            if holds and has_started(rule, since):
                assert rule_id in acted, (rule, result)
            if rule_id in acted:
                assert rule and has_started(rule, times.now()), (rule_id, rule, result)
                assert holds or "searched" in result, (rule, result)
                assert found.isdisjoint(rule.get("then", {}).get("hide", ())), (rule, result)

    def check_label(self, place: str, label_id: str, client: httpx.Client) -> None:
        """Check that GET /labels/{id} shows the label as the ledger holds it."""
        shown = client.get(f"{place}/labels/{label_id}")
        label = self.ledger.expected.label(label_id)
        if label is None:
            assert_problem(shown, 404)
            return
        document = shown.json()
        clicked = document.pop("clicked")
        if label["version"] is None:
            label["version"] = document.get("version")
        assert document == label
        self.ledger.expected.require_clicks(label_id, clicked)

    def check_rule(self, place: str, rule_id: str, client: httpx.Client) -> None:
        """Check that GET /rules/{id} shows the rule as the ledger holds it."""
        answer, rule = (
            client.get(f"{place}/rules/{rule_id}"),
            self.ledger.expected.rules.get(rule_id),
        )
        if rule is None:
            assert_problem(answer, 404)
        else:
            assert answer.json() == shown(rule)

    # Random forms and texts --------------------------------------------------------------

    def _form(self, label_id: str) -> Form:
        queries = [self._text() for _ in range(self._random.choice((0, 0, 1, 3)))]
        codes = self._random.sample(range(10_000), self._random.choice((1, 2)))
        return {
            "id": label_id,
            "text": self._text(),
            **self._random.choice(({}, {"aliases": [f"XK-{code}" for code in codes]})),
            "queries": list(dict.fromkeys(queries)),
            "metadata": self._random.choice(({}, self._metadata())),
            **self._dates_and_boost(),
        }

    def _metadata(self) -> dict[str, Any]:
        chance = self._random
        return {
            "shop": chance.choice(SHOPS),
            "price": chance.choice((20, 20.5, 60)),
            "sold": chance.random() < 0.2,
            "tags": self._some(("new", "sale", "light"), chance.randint(0, 2)),
        }

    def _dates_and_boost(self) -> dict[str, float]:
        boost = {"boost": self._random.choice((0.25, 2.0, 3.5))}
        return {**self._dates(), **self._random.choice(({}, {}, boost))}

    def _dates(self) -> dict[str, int]:
        """Return dates, most often none. Some pass soon, perhaps while no server runs."""
        passing = times.now() + round(times.SECOND * self._random.uniform(0, SOON))
        soon = (passing,) if self.dates_pass else ()
        starts = {"starts_at": self._random.choice((PAST, *soon, FUTURE))}
        ends = {"expires_at": FAR_FUTURE}
        return self._random.choice(({}, {}, {}, ends, starts, {**starts, **ends}))

    def _rule(self, rule_id: str) -> Form:
        """Return a rule about labels that this client has put or found in the bundle."""
        chance = self._random
        named = self._some(list(self.ledger.expected.forms), 4)
        match = chance.choice(("exact", "phrase", "contains", "contains"))
        when = {"when": {"query": self._text(), "match": match}}
        boost = {"factor": chance.choice((0.5, 2.0)), "filter": chance.choice(FILTERS)}
        consequences: list[dict[str, Any]] = [{"boost": boost}]
        if named:
            first, *others = named
            pins = [{"id": one, "position": 2 * place} for place, one in enumerate(others, 1)]
            consequences.append({"boost": {"factor": 1.5, "labels": named}})
            consequences.append({"hide": [first], **({"pin": pins} if pins else {})})
        rule = {"id": rule_id, "then": chance.choice(consequences), **self._dates()}
        # A filter without a condition would leave few labels in all answers.
        wanted = {"filter": chance.choice(FILTERS)}
        return {**rule, **chance.choice(({}, when, when, {**when, **wanted}))}

    def _text(self) -> str:
        return " ".join(self._random.choices(WORDS, k=self._random.randint(1, 4)))


def _assert_told(answer: dict[str, Any], changes: Sequence[Fact], told: Sequence[str]) -> None:
    for name in ("labels", "items", "rules"):
        if name in answer:
            assert [one["status"] for one in answer[name]] == list(told)
    if "status" in answer:
        assert [answer["status"]] == list(told)
    if "accepted" in answer:
        assert answer["accepted"] == len(told)
    if "unlearned" in answer:
        assert answer["unlearned"] == sum(len(change.body["labels"]) for change in changes)
