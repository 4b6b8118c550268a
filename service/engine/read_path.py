"""The way of a query: admission, waiting for a version, answering on a thread of the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic, perf_counter
from typing import Any

from service.core.errors import DeadlineExceeded
from service.core.memory.view import View
from service.core.types import Answer, PredictOptions
from service.engine.admission import Admission
from service.engine.loaded_bundle import LoadedBundle
from service.engine.view_waiters import ViewWaiters
from service.telemetry import Telemetry

TASK_QUERIES = 8  # per task, so that a large request does not occupy a thread for long


class ReadPath:
    """Answers queries from the newest view; belongs to the event loop."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        telemetry: Telemetry,
        *,
        loaded: Callable[[], LoadedBundle],
        queue_queries: int,
    ) -> None:
        """Answer on the threads of `pool`; `loaded` returns the bundle that is served."""
        self._pool, self._telemetry, self._loaded = pool, telemetry, loaded
        self.admission = Admission(queue_queries, waiting_items="queries are waiting")
        self.waiters = ViewWaiters()

    async def predict(
        self,
        queries: Sequence[str],
        base: PredictOptions,
        *,
        deadline: float,
        min_version: int,
        **requested: Any,
    ) -> tuple[str, Answer]:
        """Answer queries, see `Engine.predict`."""
        with self.admission.admit(len(queries)):
            try:
                async with asyncio.timeout(deadline - monotonic()):
                    await self.waiters.wait(
                        lambda: self._loaded().memory.view.version >= min_version
                    )
                    loaded = self._loaded()
                    options = loaded.options(base, **requested)
                    return loaded.name, await self._answer(loaded, queries, options, deadline)
            except TimeoutError as error:
                raise DeadlineExceeded("the deadline passed before the answer was there") from error

    async def _answer(
        self,
        loaded: LoadedBundle,
        queries: Sequence[str],
        options: PredictOptions,
        deadline: float,
    ) -> Answer:
        view, loop = loaded.memory.view, asyncio.get_running_loop()
        answers = await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._pool,
                    self._run_task,
                    loaded,
                    view,
                    queries[start : start + TASK_QUERIES],
                    options,
                    perf_counter(),
                    deadline,
                )
                for start in range(0, len(queries), TASK_QUERIES)
            )
        )
        seconds: dict[str, float] = {}
        for answer in answers:
            for stage, value in answer.seconds.items():
                seconds[stage] = seconds.get(stage, 0.0) + value
        predictions = tuple(prediction for answer in answers for prediction in answer.predictions)
        return Answer(version=view.version, predictions=predictions, seconds=seconds)

    def _run_task(
        self,
        loaded: LoadedBundle,
        view: View,
        queries: Sequence[str],
        options: PredictOptions,
        queued: float,
        deadline: float,
    ) -> Answer:
        """Answer some of a request's queries, in a thread of the pool; may raise at the deadline.

        `queued` is a time of `perf_counter`, `deadline` one of `monotonic`.
        """
        waited = perf_counter() - queued
        if monotonic() > deadline:
            raise DeadlineExceeded("the deadline passed while the request waited")
        answer = loaded.predictor.predict(view, queries, options)
        answer = replace(answer, seconds={"queue": waited, **answer.seconds})
        self._telemetry.observe_stages(answer.seconds)
        self._telemetry.batch_size.labels("predict").observe(len(queries))
        return answer
