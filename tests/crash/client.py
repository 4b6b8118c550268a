"""A client that writes and reads at random, and keeps a ledger of the answers."""

import http.client
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from time import sleep

import httpx
import orjson

from tests.crash.expected_memory import Click, Delete, Form, Put, PutItem, RemoveItem
from tests.crash.ledger import Ledger, Pending
from tests.crash.sender import RETRY_SECONDS, Sender
from tests.support.http.problems import assert_problem
from tests.support.http.streaming import Streamer, streaming

WORDS = (
    "alpine", "boots", "camping", "down", "ember", "fuel", "glacier", "hood", "ice", "jacket",
    "kettle", "lamp", "mat", "needle", "ozone", "pole", "quilt", "rope", "stove", "tent",
    "ultra", "vest", "winter", "yak", "zip",
)  # fmt: skip
GONE = (httpx.TransportError, http.client.HTTPException, OSError)
HABITS = {
    "put": 30,
    "put_again": 10,
    "delete": 8,
    "click": 12,
    "put_items": 10,
    "delete_item": 5,
    "stream": 5,
    "repeat": 5,
    "look": 30,
}


class Refused(Exception):
    """A stream was ended because the log cannot be written; some of its lines may be in the log."""


class Client(Sender):
    """Writes to the labels and items of one ledger, and reads what it has written."""

    def __init__(self, ledger: Ledger, *, seed: str, patience: bool = False) -> None:
        super().__init__(ledger, seed=seed, patience=patience)
        self.habits = HABITS  # relative frequency of each action
        self.reads = 0

    def run(self, port: int, stop: threading.Event, also: Sequence[int] = ()) -> None:
        """Write to `port` until `stop` is set or the server is gone; read from `also` as well."""
        self._port, self._others, self._stop = port, list(also), stop
        with httpx.Client(timeout=60) as self._http:
            names, weights = zip(*self.habits.items(), strict=True)
            try:
                while not stop.is_set():
                    [name] = self._random.choices(names, weights)
                    getattr(self, f"_{name}")()
            except GONE:
                self._others = []

    # Writes ------------------------------------------------------------------------------

    def _put(self) -> None:
        """Put one or several labels, new or changed, with and without queries."""
        count = self._random.choice((1, 1, 1, 2, 5, 8))
        self._put_forms([self._form(label_id) for label_id in self._some(self.ledger.ids, count)])

    def _put_again(self) -> None:
        """Put a label again, unchanged or with other metadata only."""
        for form in self._some(list(self.ledger.expected.forms.values()), 1):
            if self._random.random() < 0.7:
                form = {**form, "metadata": {"note": self._text()}}
            self._put_forms([form])

    def _put_forms(self, forms: Sequence[Form]) -> None:
        self._write("POST", "/labels", [Put(form=form) for form in forms], {"labels": forms})

    def _delete(self) -> None:
        label_id = self._random.choice(self.ledger.ids)
        if label_id in self.ledger.expected.forms:
            self._write("DELETE", f"/labels/{label_id}", [Delete(id=label_id)])
        elif not self._patience:
            assert_problem(self._send("DELETE", f"/labels/{label_id}"), 404)

    def _click(self) -> None:
        held = list(self.ledger.expected.forms)
        if not held:
            return
        clicks = [
            Click(
                query=query,
                labels=tuple(self._some(held, self._random.randint(1, 3))),
                weight=self._random.choice((1.0, 1.0, 0.3, 4.0)),
            )
            for query in {
                f"{self.ledger.owner} {self._text()}" for _ in range(self._random.choice((1, 3)))
            }
        ]
        instances = [asdict(click) for click in clicks]
        self._write("POST", "/instances", clicks, {"instances": instances})

    def _put_items(self) -> None:
        """Put items, new or with another text or as they are; also some that must be refused."""
        ids = self._some(self.ledger.item_ids, self._random.choice((1, 1, 3)))
        items = [PutItem(id=item_id, text=self._text()) for item_id in ids]
        if items and self._random.random() < 0.2:
            known = self.ledger.expected.items
            items = [replace(item, text=known.get(item.id, item.text)) for item in items]
        if items and self._random.random() < 0.2 and not self._patience:
            refused = [*map(asdict, items), {"id": "of nobody", "text": " "}]
            answer = self._send("POST", "/items", {"items": refused})
            assert_problem(answer, 422, field=f"items.{len(items)}.text")
        elif items:
            self._write("POST", "/items", items, {"items": [asdict(item) for item in items]})

    def _delete_item(self) -> None:
        for item_id in self._some(self.ledger.item_ids, 1):
            if item_id in self.ledger.expected.items:
                self._write("DELETE", f"/items/{item_id}", [RemoveItem(id=item_id)])
            elif not self._patience:
                assert_problem(self._send("DELETE", f"/items/{item_id}"), 404)

    # Streams -----------------------------------------------------------------------------

    def _stream(self) -> None:
        """Stream labels; lines without an answer are sent again in another stream."""
        count = self._random.randint(3, 40)
        # With repeated lines an id must not come twice: its older form could be written last.
        ids = self._some(self.ledger.ids, count) if self._patience else self.ledger.ids
        forms = [self._form(self._random.choice(ids)) for _ in range(count)]
        if self._patience:
            forms = list({form["id"]: form for form in forms}.values())
        lines, uncertain = [Put(form=form) for form in forms], False
        while lines:
            try:
                with streaming(self._port) as stream:
                    self._send_lines(stream, lines, uncertain=uncertain)
            except Refused:
                self.refused += 1
                uncertain = True
                sleep(RETRY_SECONDS)
        self.ledger.pending = None

    def _send_lines(self, stream: Streamer, lines: list[Put], *, uncertain: bool) -> None:
        """Send lines, a few or all at a time, and remove each when it is answered."""
        size = self._random.choice((5, 50))
        while lines:
            self.ledger.pending = Pending(changes=tuple(lines), whole=False)
            sent = lines[:size]
            for line in sent:
                stream.send(orjson.dumps(line.form) + b"\n")
            for line in sent:
                self._line_answered(stream, line, uncertain=uncertain)
                del lines[0]
                self.ledger.pending = Pending(changes=tuple(lines), whole=False)
        stream.end()
        assert stream.rest() == []

    def _line_answered(self, stream: Streamer, line: Put, *, uncertain: bool) -> None:
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
        assert answer["id"] == line.form["id"] and answer["status"] in allowed, answer
        self._version = max(self._version, version)
        self.writes += 1

    # Reads -------------------------------------------------------------------------------

    def _look(self) -> None:
        """A server shows all acknowledged writes of this client, and nothing that they replaced."""
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
                by_name = self._http.post(f"{place}/predict", json={**question, "items": [item_id]})
                if by_name.status_code == 200:  # another client's item has this id as its text
                    [item] = by_name.json()["results"][0]["items"]
                    assert item["id"] != item_id and item["text"] == item_id
                else:
                    assert_problem(by_name, 422, field="items.0")
        answer = self._http.post(f"{place}/predict", json=question)
        assert answer.status_code == 200, answer.text
        assert answer.json()["version"] >= self._version
        for keyword in answer.json()["results"][0]["keywords"]:
            if keyword["id"] in self.ledger.ids:
                label = self.ledger.expected.label(keyword["id"])
                assert label is not None, f"{keyword['id']} was deleted"
                for fact in ("text", "metadata", "novel"):
                    assert keyword[fact] == label[fact], (keyword, label)
        self.check_label(place, self._random.choice(self.ledger.ids), self._http)
        self.reads += 1

    def check_label(self, place: str, label_id: str, client: httpx.Client) -> None:
        """GET /labels/{id} shows the label as the ledger holds it."""
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

    # Chance ------------------------------------------------------------------------------

    def _form(self, label_id: str) -> Form:
        queries = [self._text() for _ in range(self._random.choice((0, 0, 1, 3)))]
        return {
            "id": label_id,
            "text": self._text(),
            "queries": list(dict.fromkeys(queries)),
            "metadata": self._random.choice(({}, {"shop": self._random.choice(WORDS)})),
        }

    def _text(self) -> str:
        return " ".join(self._random.choices(WORDS, k=self._random.randint(1, 4)))
