"""One client's requests: sent one at a time, repeated after a refusal, and noted in a ledger."""

import random
from collections.abc import Sequence
from time import sleep
from typing import Any

import httpx

from tests.crash.expected_memory import Change
from tests.crash.ledger import Ledger, Outcome, Pending
from tests.support.http.problems import assert_problem

RETRY_SECONDS = 0.05


class Sender:
    """Sends the writes of one ledger.

    With `patience` each write has an idempotency key and is repeated after a 503, as clients should
    do; without, a 503 fails the test.
    """

    def __init__(self, ledger: Ledger, *, seed: str, patience: bool = False) -> None:
        self.ledger = ledger
        self.writes = self.refused = 0
        self._random = random.Random(seed)
        self._patience = patience
        self._keys = 0
        self._version = 0  # the newest that was answered to this client
        self._answered: list[tuple[dict[str, Any], Any]] = []  # requests with a key
        self._unanswered: dict[str, Any] | None = None

    def resume(self, port: int, outcome: Outcome | None) -> None:
        """After a restart: repeat requests with an idempotency key, also an answered one.

        The ledger's next `settle` shows a repetition that was lost or was carried out twice.
        """
        self._port = port
        with httpx.Client(timeout=60) as self._http:
            request, self._unanswered = self._unanswered, None
            if request is not None and outcome is not None:
                answer = self._ask(**request)
                told = outcome.told
                if outcome.version is None:
                    changes, version = outcome.pending.changes, answer["version"]
                    told = self.ledger.acknowledge(changes, version=version)
                else:
                    assert answer["version"] == outcome.version
                _assert_told(answer, told)
                self._answered.append((request, answer))
            self._repeat()

    def _write(
        self, method: str, path: str, changes: Sequence[Change], document: Any = None
    ) -> None:
        """Send a write, and compare its acknowledgement with the ledger."""
        request: dict[str, Any] = {"method": method, "path": path, "document": document}
        keyed = self._patience or self._random.random() < 0.5
        if keyed:
            self._keys += 1
            request["key"] = f"{self.ledger.owner}:{self._keys}"
        # An earlier request that was not resumed is settled by the log and not repeated.
        self._unanswered = request if keyed else None
        self.ledger.pending = Pending(changes=changes, whole=True)
        answer = self._ask(**request)
        self.ledger.pending = None
        _assert_told(answer, self.ledger.acknowledge(changes, version=answer["version"]))
        if keyed:
            self._answered.append((request, answer))
            self._unanswered = None
        self._version = max(self._version, answer["version"])
        self.writes += 1

    def _repeat(self) -> None:
        """A repeated request gets its first answer again and adds no event."""
        for request, answer in self._some(self._answered, 1):
            assert self._ask(**request) == answer

    def _ask(self, **request: Any) -> Any:
        """The answer to a write, repeated while it is refused."""
        while True:
            answer = self._send(**request)
            if answer.status_code != 503 or not self._patience:
                assert answer.status_code == 200, answer.text
                return answer.json()
            assert_problem(answer, 503)
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


def _assert_told(answer: dict[str, Any], told: Sequence[str]) -> None:
    if "labels" in answer:
        assert [label["status"] for label in answer["labels"]] == list(told)
    if "items" in answer:
        assert [item["status"] for item in answer["items"]] == list(told)
    if "accepted" in answer:
        assert answer["accepted"] == len(told)
