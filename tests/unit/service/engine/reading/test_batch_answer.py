"""One batch: encoded together, searched by view and options; nobody fails for a neighbour."""

import asyncio
from collections.abc import Iterator, Sequence
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
from service.core.items.fused_queries import FusedQueries
from service.core.prediction.predictor import AttendedItems, Searched, Stopwatch
from service.core.types import Floats, Prediction, PredictOptions
from service.engine.reading import batch_answer
from service.engine.reading.batch_answer import Outcome, answer_batch, failure
from service.engine.reading.query_request import QueryRequest, QueryTask
from service.engine.reading.task_queue import Batch, TaskQueue
from service.settings import EngineSettings
from service.telemetry import Telemetry

NOW = 1_000.0  # of the clock that a test may move


class FakePredictor:
    """A query's vector is its length; whatever a text of `broken` is in fails."""

    def __init__(self) -> None:
        self.encoded: list[list[str]] = []
        self.searched: list[list[float]] = []
        self.scored: list[str] = []
        self.broken: set[str] = set()
        self.encoding_ends = self.search_ends = lambda: None

    def encode(self, queries: Sequence[str], watch: Stopwatch) -> Floats:
        self.encoded.append(list(queries))
        watch.seconds["encode"] = 0.002
        self.encoding_ends()
        if self.broken & set(queries):
            raise ValueError("this text breaks the tokenizer")
        return np.array([[len(query)] for query in queries], np.float32)

    def fuse(
        self, _view: Any, vectors: Floats, _options: PredictOptions, _watch: Stopwatch
    ) -> FusedQueries:
        return FusedQueries(vectors=vectors)

    def search(
        self, _view: Any, queries: Sequence[str], vectors: Floats, _options: PredictOptions
    ) -> Searched:
        self.searched.append(vectors[:, 0].tolist())
        self.search_ends()
        rows = np.zeros(vectors.shape, np.int64)
        return Searched(queries=queries, vectors=vectors, similarities=vectors, rows=rows)

    def predictions(
        self,
        _view: Any,
        searched: Searched,
        _options: PredictOptions,
        items: Sequence[AttendedItems],
        _watch: Stopwatch,
    ) -> tuple[Prediction, ...]:
        queries = searched.queries
        assert items == [None] * len(queries)
        assert [len(query) for query in queries] == searched.vectors[:, 0].tolist()
        self.scored += queries
        return tuple(Prediction(query=query, keywords=()) for query in queries)


class Desk:
    """Requests of fake bundles, and what became of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOW
        monkeypatch.setattr(batch_answer, "monotonic", lambda: self.now)
        self.loop = asyncio.new_event_loop()
        self.loaded = self.bundle()
        self.telemetry = Telemetry()

    @property
    def predictor(self) -> FakePredictor:
        return self.loaded.predictor

    def bundle(self) -> Any:
        memory = SimpleNamespace(view=SimpleNamespace(version=1))
        return SimpleNamespace(memory=memory, predictor=FakePredictor())

    def request(self, *queries: str, loaded: Any = None, **how: Any) -> QueryRequest:
        async def make() -> QueryRequest:
            return QueryRequest(
                queries,
                how.get("options", PredictOptions()),
                loaded=loaded or self.loaded,
                queued=NOW - 0.5,
                deadline=how.get("deadline", NOW + 60),
                client=how.get("client"),
                serialize=how.get("serialize"),
            )

        return self.loop.run_until_complete(make())

    def answer(
        self, tasks: Sequence[QueryTask], dropped: Sequence[tuple[QueryRequest, KeymatchError]] = ()
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        lane = TaskQueue(EngineSettings()).lane(1)
        batch = Batch(lane=lane, tasks=tasks, dropped=dropped)
        answer_batch(batch, self.telemetry, outcomes)
        return outcomes

    def answer_requests(self, *requests: QueryRequest) -> list[Outcome]:
        """Answer requests of one task each, and complete them."""
        outcomes = self.answer([request.cut() for request in requests])
        for outcome in outcomes:
            outcome.complete()
        return outcomes


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk(monkeypatch)
    yield desk
    desk.loop.close()


def answered(request: QueryRequest) -> list[str]:
    return [prediction.query for prediction in request.future.result().predictions]


def test_requests_are_encoded_and_searched_together(desk: Desk) -> None:
    first, second = desk.request("a"), desk.request("bb", "ccc")
    desk.answer_requests(first, second)
    assert desk.predictor.encoded == [["a", "bb", "ccc"]]
    assert desk.predictor.searched == [[1, 2, 3]]
    assert (answered(first), answered(second)) == (["a"], ["bb", "ccc"])


def test_an_answer_says_what_each_stage_took(desk: Desk) -> None:
    request = desk.request("a")
    desk.answer_requests(request)
    assert request.future.result().version == 1
    seconds = request.future.result().seconds
    assert seconds.keys() == {"queue", "encode", "retrieve", "score"}
    assert (seconds["queue"], seconds["encode"]) == (0.5, 0.002)


def test_predictions_are_serialised_where_the_request_asks_for_that(desk: Desk) -> None:
    request = desk.request("a", "bb", serialize=lambda prediction: prediction.query.encode())
    plain = desk.request("ccc")
    desk.answer_requests(request, plain)
    answer = request.future.result()
    assert (answer.predictions, answer.serialized) == ((), (b"a", b"bb"))
    assert answered(plain) == ["ccc"]


def test_what_a_serialiser_refuses_fails_its_request_alone(desk: Desk) -> None:
    def refuse(_prediction: Prediction) -> bytes:
        raise AnswerTooLarge("too much")

    request, plain = desk.request("a", serialize=refuse), desk.request("bb")
    desk.answer_requests(request, plain)
    assert isinstance(request.future.exception(), AnswerTooLarge)
    assert answered(plain) == ["bb"]
    assert desk.predictor.searched == [[1, 2]]  # none of it was done twice


def test_tasks_of_other_options_or_views_are_searched_by_themselves(desk: Desk) -> None:
    tasks = [desk.request("a").cut(), desk.request("bb", options=PredictOptions(top_k=3)).cut()]
    desk.loaded.memory.view = SimpleNamespace(version=2)
    tasks += [desk.request("ccc").cut(), desk.request("dddd").cut()]
    outcomes = desk.answer(tasks)
    assert desk.predictor.encoded == [["a", "bb", "ccc", "dddd"]]
    assert desk.predictor.searched == [[1], [2], [3, 4]]
    versions = [outcome.answer.version for outcome in outcomes if outcome.answer]
    assert versions == [1, 1, 2, 2]


def test_tasks_of_two_bundles_meet_during_a_reload(desk: Desk) -> None:
    other = desk.bundle()
    first, second = desk.request("a"), desk.request("bb", loaded=other)
    desk.answer_requests(first, second)
    assert (desk.predictor.encoded, other.predictor.encoded) == ([["a"]], [["bb"]])
    assert (answered(first), answered(second)) == (["a"], ["bb"])


def test_what_expired_while_it_was_encoded_is_not_searched(desk: Desk) -> None:
    client = SimpleNamespace(left=False)
    late = desk.request("late", deadline=NOW + 1)
    left, kept = desk.request("left", client=client), desk.request("kept")

    def two_seconds_later() -> None:
        desk.now, client.left = NOW + 2, True

    desk.predictor.encoding_ends = two_seconds_later
    desk.answer_requests(late, left, kept)
    assert desk.predictor.searched == [[4]]
    assert isinstance(late.future.exception(), DeadlineExceeded)
    assert isinstance(left.future.exception(), ClientLeft)
    assert answered(kept) == ["kept"]


def test_what_expired_while_it_was_searched_is_not_scored(desk: Desk) -> None:
    client = SimpleNamespace(left=False)
    late = desk.request("late", deadline=NOW + 1)
    left, kept = desk.request("left!", client=client), desk.request("kept")

    def two_seconds_later() -> None:
        desk.now, client.left = NOW + 2, True

    desk.predictor.search_ends = two_seconds_later
    desk.answer_requests(late, left, kept)
    assert desk.predictor.scored == ["kept"]
    assert isinstance(late.future.exception(), DeadlineExceeded)
    assert isinstance(left.future.exception(), ClientLeft)
    assert answered(kept) == ["kept"]


def test_a_text_that_fails_fails_its_own_request_only(desk: Desk) -> None:
    desk.predictor.broken = {"bad"}
    requests = [desk.request(query) for query in ("a", "bad", "ccc")]
    outcomes = desk.answer_requests(*requests)
    assert len(outcomes) == 3
    assert (answered(requests[0]), answered(requests[2])) == (["a"], ["ccc"])
    assert isinstance(requests[1].future.exception(), ValueError)


def test_a_single_task_that_fails_is_not_tried_again(desk: Desk) -> None:
    desk.predictor.broken = {"bad"}
    request = desk.request("bad")
    desk.answer_requests(request)
    assert desk.predictor.encoded == [["bad"]]
    assert isinstance(request.future.exception(), ValueError)


def test_what_the_queue_dropped_is_told_and_nothing_is_encoded(desk: Desk) -> None:
    request, error = desk.request("a"), DelayExceeded("too late", retry_after=1)
    [outcome] = desk.answer([], dropped=[(request, error)])
    outcome.complete()
    assert request.future.exception() is error
    assert desk.predictor.encoded == []


def test_a_request_that_has_ended_is_not_ended_again(desk: Desk) -> None:
    request = desk.request("a")
    outcomes = [*desk.answer([request.cut()]), failure(request, KeyError())]
    request.fail(DeadlineExceeded("too late"))
    for outcome in outcomes:
        outcome.complete()
    assert isinstance(request.future.exception(), DeadlineExceeded)


def test_batches_and_stages_are_counted(desk: Desk) -> None:
    desk.answer_requests(desk.request("a"), desk.request("bb", "ccc"))
    lines = desk.telemetry.render().decode().splitlines()
    assert 'keymatch_batch_size_sum{kind="predict"} 3.0' in lines
    assert 'keymatch_stage_seconds_sum{stage="queue"} 1.0' in lines
    assert 'keymatch_stage_seconds_count{stage="encode"} 1.0' in lines
