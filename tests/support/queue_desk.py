"""A queue of requests with a clock that the test controls."""

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.core.types import PredictOptions
from service.engine.loaded_bundle import LoadedBundle
from service.engine.reading import task_queue
from service.engine.reading.task_queue import TASK_COST, Batch, QueryRequest, TaskQueue
from service.settings import EngineSettings

PLAIN = PredictOptions()


def facts(**predictor: Any) -> Any:
    """Return what options need of a manifest."""
    of_bundle = {"memorization": PLAIN.memorization, "depth": PLAIN.depth, "words": None}
    return SimpleNamespace(
        predictor=SimpleNamespace(**{**of_bundle, **predictor}),
        reranker=None,
        spelling="off",
        confidence=None,
    )


VIEW = SimpleNamespace(has_rules=False)
LOADED = cast(
    LoadedBundle,
    SimpleNamespace(
        memory=SimpleNamespace(view=VIEW),
        bundle=SimpleNamespace(manifest=facts()),
    ),
)


class QueueDesk:
    """A queue with a clock that the test controls, and the requests put into it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(task_queue, "monotonic", lambda: self.now)
        self.queue = TaskQueue(EngineSettings(**{"threads": 1, "queue_target_ms": 10, **options}))
        self.loop = asyncio.new_event_loop()

    def request(
        self,
        queries: int,
        *,
        deadline: float = 60.0,
        client: Any = None,
        options: PredictOptions = PLAIN,
    ) -> QueryRequest:
        async def make() -> QueryRequest:
            texts = [f"q{number}" for number in range(queries)]
            deadline_at = self.now + deadline
            asked = {field.name: getattr(options, field.name) for field in fields(options)}
            request = QueryRequest(texts, LOADED, asked, deadline=deadline_at, client=client)
            request.join(LOADED, queued=self.now)
            return request

        return self.loop.run_until_complete(make())

    def put(self, queries: int, **how: Any) -> QueryRequest:
        request = self.request(queries, **how)
        self.queue.put(request)
        return request

    def take(self, *, seconds: float = 0.0) -> Batch:
        """Take a batch as a thread does, and finish it `seconds` later."""
        batch = self.queue.take()
        assert isinstance(batch, Batch)
        self.now += seconds
        self.queue.finish(batch, seconds=seconds)
        return batch

    def overload(self) -> None:
        """Let requests wait in the small lane until it is overloaded, then empty it."""
        self.take_all_of([self.put(1) for _ in range(TASK_COST)], wait=0.2)
        assert self.queue.lane(1).control.overloaded

    def take_all_of(self, requests: Sequence[QueryRequest], *, wait: float) -> None:
        self.now += wait
        while self.queue.depth:
            self.take()


def taken(batch: Batch) -> list[QueryRequest]:
    return [task.request for task in batch.tasks]


def errors(batch: Batch) -> list[type[Exception]]:
    return [type(error) for _, error in batch.dropped]
