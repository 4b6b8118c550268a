"""New views and leaving clients wake waiters; a failing request fails no other of its batch."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.core.errors import (
    AnswerTooLarge,
    ClientLeft,
    DeadlineExceeded,
    DelayExceeded,
    KeymatchError,
)
from service.core.prediction.predictor import Readings
from service.core.prediction.ranking import Query, Stopwatch
from service.core.types import Floats, Prediction, Reading
from service.engine.reading import read_path
from service.engine.reading.read_path import Outcome, ViewWaiters, answer_batch
from service.engine.reading.task_queue import Batch, Client, QueryRequest, QueryTask, TaskQueue
from service.settings import EngineSettings
from service.telemetry import Telemetry
from tests.support.queue_desk import facts

NOW = 1_000.0  # start of the clock, which a test may move


def a_view(*, version: int) -> Any:
    return SimpleNamespace(version=version, filter_warnings=(), has_rules=False)


def test_a_version_is_reached_already_or_by_another_thread() -> None:
    waiters, version = ViewWaiters(), 0

    def publish() -> None:
        nonlocal version
        version += 1
        waiters.notify()

    async def both() -> None:
        await waiters.wait(lambda: True, client=Client())
        first = asyncio.create_task(waiters.wait(lambda: version >= 1, client=Client()))
        second = asyncio.create_task(waiters.wait(lambda: version >= 2, client=Client()))
        await asyncio.sleep(0)
        assert len(waiters) == 2
        await asyncio.to_thread(publish)
        await first
        assert not second.done()
        await asyncio.to_thread(publish)
        await second
        assert len(waiters) == 0

    asyncio.run(both())


def test_only_those_whose_client_has_left_are_given_up() -> None:
    waiters = ViewWaiters()

    async def two_leave() -> None:
        clients = [Client(), Client(), Client()]
        tasks = [
            asyncio.create_task(waiters.wait(lambda: False, client=client)) for client in clients
        ]
        await asyncio.sleep(0)
        assert len(waiters) == 3
        for place in range(2):
            clients[place].left = True
            clients[place].on_leave()
            with pytest.raises(ClientLeft):
                await asyncio.wait_for(tasks[place], 60)
            assert len(waiters) == 2 - place
            assert clients[place].on_leave is None
        tasks[2].cancel()
        await asyncio.wait([tasks[2]])
        assert len(waiters) == 0

    asyncio.run(two_leave())


class FakePredictor:
    """A query's vector is its length; encoding fails if one of the texts is in `broken`."""

    def __init__(self) -> None:
        self.encoded: list[list[str]] = []
        self.searches: list[list[float]] = []
        self.scored: list[str] = []
        self.broken: set[str] = set()
        self.encode_ends = self.search_ends = lambda: None

    def read(self, _view: Any, queries: Sequence[str], *_: Any) -> list[Readings]:
        """A query "a|b" may mean "a" or "b"."""
        return [
            tuple(Reading(query=query, text=text) for text in query.split("|")) for query in queries
        ]

    def encode(self, readings: Iterable[Readings], watch: Stopwatch) -> dict[str, Floats]:
        texts = [reading.text for reading in chain.from_iterable(readings)]
        self.encoded.append(texts)
        watch.seconds["encode"] = 0.002
        self.encode_ends()
        if self.broken & set(texts):
            raise ValueError("this text breaks the tokenizer")
        return {text: np.array([len(text)], np.float32) for text in texts}

    def searched(
        self,
        view: Any,
        readings: Sequence[Readings],
        vectors: Mapping[str, Floats],
        _options: Any,
        watch: Stopwatch,
    ) -> list[Query]:
        """Choose the last reading of each query."""
        texts = [reading.text for reading in chain.from_iterable(readings)]
        self.searches.append([float(vectors[text][0]) for text in texts])
        watch.seconds["retrieve"] = 0.001
        self.search_ends()
        return [
            Query(view, of_query[-1], (), watch, vector=vectors[of_query[-1].text])
            for of_query in readings
        ]

    def predictions(self, searched: Sequence[Query], _options: Any) -> tuple[Prediction, ...]:
        texts = [query.reading.text for query in searched]
        assert [len(text) for text in texts] == [query.vector[0] for query in searched]
        self.scored += texts
        return tuple(Prediction(reading=query.reading, keywords=()) for query in searched)


class Desk:
    """Makes requests to fake bundles, and answers them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOW
        monkeypatch.setattr(read_path, "monotonic", lambda: self.now)
        self.loop = asyncio.new_event_loop()
        self.loaded = self.bundle()
        self.predictor: FakePredictor = self.loaded.predictor
        self.telemetry = Telemetry()

    def bundle(self) -> Any:
        memory = SimpleNamespace(view=a_view(version=1), is_timed=lambda view: False)
        bundle = SimpleNamespace(manifest=facts())
        return SimpleNamespace(memory=memory, bundle=bundle, predictor=FakePredictor())

    def request(self, *queries: str, loaded: Any = None, **how: Any) -> QueryRequest:
        async def make() -> QueryRequest:
            asked = how.pop("asked", {})
            how.setdefault("deadline", NOW + 60)
            request = QueryRequest(queries, loaded or self.loaded, asked, **how)
            request.join(request.loaded, queued=NOW - 0.5)
            return request

        return self.loop.run_until_complete(make())

    def answer(
        self, tasks: Sequence[QueryTask], dropped: Sequence[tuple[QueryRequest, KeymatchError]] = ()
    ) -> list[Outcome]:
        """Answer tasks, and complete their requests."""
        outcomes: list[Outcome] = []
        lane = TaskQueue(EngineSettings()).lane(1)
        answer_batch(Batch(lane=lane, tasks=tasks, dropped=dropped), self.telemetry, outcomes)
        for complete in outcomes:
            complete()
        return outcomes

    def answer_requests(self, *requests: QueryRequest) -> list[Outcome]:
        """Answer requests that fit into one task each."""
        return self.answer([request.cut() for request in requests])


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk(monkeypatch)
    yield desk
    desk.loop.close()


def answered(request: QueryRequest) -> list[str]:
    return [prediction.query for prediction in request.future.result().predictions]


def test_all_readings_of_a_query_are_encoded_and_searched(desk: Desk) -> None:
    first, second = desk.request("a", "bb|ccc"), desk.request("dddd|eeeee")
    desk.answer_requests(first, second)
    assert desk.predictor.encoded == [["a", "bb", "ccc", "dddd", "eeeee"]]
    assert desk.predictor.searches == [[1, 2, 3, 4, 5]]
    assert desk.predictor.scored == ["a", "ccc", "eeeee"]
    assert answered(first) == ["a", "bb|ccc"]
    assert answered(second) == ["dddd|eeeee"]


def test_requests_are_encoded_and_searched_together(desk: Desk) -> None:
    first, second = desk.request("a"), desk.request("bb", "ccc")
    desk.answer_requests(first, second)
    assert desk.predictor.encoded == [["a", "bb", "ccc"]]
    assert desk.predictor.searches == [[1, 2, 3]]
    assert (answered(first), answered(second)) == (["a"], ["bb", "ccc"])
    answer = first.future.result()
    assert (answer.version, answer.seconds["queue"], answer.seconds["encode"]) == (1, 0.5, 0.002)
    assert answer.seconds.keys() == {"queue", "encode", "retrieve", "score"}
    lines = desk.telemetry.render().decode().splitlines()
    assert 'keymatch_batch_size_sum{kind="predict"} 3.0' in lines
    assert 'keymatch_stage_seconds_sum{stage="queue"} 1.0' in lines
    assert 'keymatch_stage_seconds_count{stage="encode"} 1.0' in lines


def test_predictions_are_serialized_where_the_request_asks_for_that(desk: Desk) -> None:
    def refuse(_prediction: Prediction) -> bytes:
        raise AnswerTooLarge("too much")

    request = desk.request("a", "bb", serialize=lambda prediction: prediction.query.encode())
    refused, plain = desk.request("dddd", serialize=refuse), desk.request("ccc")
    desk.answer_requests(request, refused, plain)
    answer = request.future.result()
    assert (answer.predictions, answer.serialized) == ((), (b"a", b"bb"))
    assert isinstance(refused.future.exception(), AnswerTooLarge)
    assert answered(plain) == ["ccc"]
    assert desk.predictor.searches == [[1, 2, 4, 3]]  # nothing was searched twice


def test_tasks_of_other_options_views_or_bundles_are_searched_by_themselves(desk: Desk) -> None:
    requests = [desk.request("a"), desk.request("bb", asked={"top_k": 3})]
    requests += [desk.request("ccc"), desk.request("dddd")]
    tasks = [request.cut() for request in requests[:2]]
    desk.loaded.memory.view = a_view(version=2)
    other = desk.bundle()  # during a reload
    requests.append(desk.request("of other", loaded=other))
    dropped = desk.request("dropped"), DelayExceeded("too late", retry_after=1)
    desk.answer([*tasks, *(request.cut() for request in requests[2:])], dropped=[dropped])
    assert dropped[0].future.exception() is dropped[1]
    assert desk.predictor.encoded == [["a", "bb", "ccc", "dddd"]]
    assert desk.predictor.searches == [[1], [2], [3, 4]]
    assert other.predictor.encoded == [["of other"]]
    assert answered(requests[-1]) == ["of other"]
    assert [request.future.result().version for request in requests] == [1, 1, 2, 2, 1]


def test_a_bundle_that_is_served_after_the_wait_chooses_the_options_again(desk: Desk) -> None:
    after = desk.bundle()
    for loaded, depth in ((desk.loaded, 5), (after, 7)):
        loaded.bundle.manifest = facts(depth=depth)

    async def make() -> QueryRequest:
        return QueryRequest(["a"], desk.loaded, {})

    request = desk.loop.run_until_complete(make())
    request.join(desk.loaded, queued=NOW)
    assert request.options.depth == 5
    request.join(after, queued=NOW)
    assert (request.loaded, request.options.depth) == (after, 7)


@pytest.mark.parametrize("stage", ["encode", "search"])
def test_what_expired_in_a_stage_does_not_reach_the_next(desk: Desk, stage: str) -> None:
    client = Client()
    late = desk.request("late", deadline=NOW + 1)
    left, kept = desk.request("left!", client=client), desk.request("kept")

    def two_seconds_later() -> None:
        desk.now, client.left = NOW + 2, True

    setattr(desk.predictor, f"{stage}_ends", two_seconds_later)
    desk.answer_requests(late, left, kept)
    assert desk.predictor.searches == [[4] if stage == "encode" else [4, 5, 4]]
    assert desk.predictor.scored == ["kept"]
    assert isinstance(late.future.exception(), DeadlineExceeded)
    assert isinstance(left.future.exception(), ClientLeft)
    assert answered(kept) == ["kept"]


def test_a_text_that_fails_fails_its_own_request_only(desk: Desk) -> None:
    desk.predictor.broken = {"bad"}
    requests = [desk.request(query) for query in ("a", "bad", "ccc")]
    assert len(desk.answer_requests(*requests)) == 3
    assert (answered(requests[0]), answered(requests[2])) == (["a"], ["ccc"])
    assert isinstance(requests[1].future.exception(), ValueError)
    tried = len(desk.predictor.encoded)
    alone = desk.request("bad")
    desk.answer_requests(alone)  # a single task is not tried again
    assert len(desk.predictor.encoded) == tried + 1
    assert isinstance(alone.future.exception(), ValueError)


def test_a_request_that_has_ended_is_not_ended_again(desk: Desk) -> None:
    request = desk.request("a")
    task = request.cut()
    request.fail(DeadlineExceeded("too late"))
    for complete in desk.answer([task]):
        complete()
    request.fail(KeyError())
    assert isinstance(request.future.exception(), DeadlineExceeded)
