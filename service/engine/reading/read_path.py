"""A query's way: waiting for a version, admission, the queue, and the answering threads.

A thread takes a batch from the queue. All queries of a batch are encoded together, then searched
and scored.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from time import monotonic

from service.core import times
from service.core.errors import (
    ClientLeft,
    DeadlineExceeded,
    InvalidInput,
    KeymatchError,
    Overloaded,
)
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.prediction.predictor import Readings
from service.core.prediction.ranking import Query, Stopwatch
from service.core.processes.quick_switches import QuickSwitches
from service.core.types import Answer, Floats, Prediction, PredictOptions
from service.engine.loaded_bundle import LoadedBundle
from service.engine.reading.task_queue import Batch, Client, QueryRequest, QueryTask, TaskQueue
from service.settings import EngineSettings
from service.telemetry import Telemetry

# A `min_version` may lie ahead of the memory by so many times `queue_labels`. A commit of another
# process writes at most one full queue, and is read here within milliseconds, so an acknowledged
# write is never further ahead. At the default of 10,000, this is twenty times the lag at which the
# alert KeymatchLogLag fires.
FULL_QUEUES = 2

Take = Callable[[], Batch | Callable[[], None] | None]  # from the queue
Way = Callable[[], AbstractContextManager[None]]  # in which a thread answers
Outcome = Callable[[], None]  # completes or fails a request; called in its event loop
Results = tuple[tuple[Prediction, ...], tuple[bytes, ...]]  # as `Answer` holds them
_Read = tuple[QueryTask, Sequence[Readings]]  # what the queries of a task may mean

log = logging.getLogger("keymatch")


class ViewWaiters:
    """Coroutines that wait for a view; the writer's thread wakes them.

    asyncio.Condition and anyio's events wake only coroutines of their own thread.
    """

    def __init__(self) -> None:
        self._waiters: set[asyncio.Event] = set()  # only the event loop's thread changes it
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    def notify(self) -> None:
        """Announce a new view. Any thread may call this."""
        if self._waiters and self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake_all)

    async def wait(self, reached: Callable[[], bool], *, client: Client) -> None:
        """Return once `reached()` is true. It is checked now and after each new view.

        Raises `ClientLeft` soon after `client` has left.
        """
        if reached():
            return
        wake, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._waiters.add(wake)  # before `reached` is checked again, so no view is missed
        client.on_leave = wake.set
        try:
            while not reached():
                if client.left:
                    raise ClientLeft("the client disconnected before the memory was new enough")
                await wake.wait()
                wake.clear()
        finally:
            self._waiters.remove(wake)
            client.on_leave = None

    def _wake_all(self) -> None:
        for wake in self._waiters:
            wake.set()


class ReadPath:
    """Answers queries from the newest view.

    Only the event loop calls `predict`. Threads answer the requests that it puts into the queue.
    """

    def __init__(
        self,
        queue: TaskQueue,
        telemetry: Telemetry,
        *,
        loaded: Callable[[], LoadedBundle],
        settings: EngineSettings,
        switches: QuickSwitches,
    ) -> None:
        """Start the threads that take from `queue`; `loaded` returns the bundle that is served.

        The threads switch quickly while the spare thread answers.
        """
        self._queue, self._telemetry, self._loaded = queue, telemetry, loaded
        self._version_waiters = settings.version_waiters
        self._most_in_flight = FULL_QUEUES * settings.queue_labels  # events
        self.waiters = ViewWaiters()
        ways: list[tuple[Take, Way]] = [(queue.take, nullcontext)] * settings.threads
        if settings.device == "cpu":
            ways.append((queue.take_spare, switches.asked))
        self._threads = [
            threading.Thread(target=self._run, args=way, name=f"answer-{number}", daemon=True)
            for number, way in enumerate(ways)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Answer waiting requests, then end the threads."""
        self._queue.close()
        for thread in self._threads:
            thread.join()

    async def predict(self, request: QueryRequest) -> tuple[str, Answer]:
        """Answer a request, unless its client leaves; returns the bundle's name and the answer.

        Raises `InvalidInput` for a `min_version` too far ahead, `Overloaded`, `DelayExceeded`,
        `DeadlineExceeded`, `ClientLeft`, or what `complete_options` or the request's `serialize`
        raises.
        """
        request.client.arrived(len(request.queries))
        queued = request.client.received  # the time that it waits for the event loop counts, too
        if self._version() < request.options.min_version:
            await self._wait_for_version(request)
            queued = monotonic()
        request.join(self._loaded(), queued=queued)
        self._queue.put(request)
        return request.loaded.bundle.manifest.name, await self._answer(request)

    async def _answer(self, request: QueryRequest) -> Answer:
        """Wait for the answer until the deadline passes or the client leaves."""
        client, seconds = request.client, max(0.0, request.deadline - monotonic())
        late = DeadlineExceeded("the deadline passed before the answer was there")
        timer = request.loop.call_later(seconds, self._queue.withdraw, request, late)
        left = ClientLeft("the client disconnected before it was answered")
        client.on_leave = partial(self._queue.withdraw, request, left)
        try:
            return await request.future
        finally:
            timer.cancel()
            client.on_leave = None

    async def _wait_for_version(self, request: QueryRequest) -> None:
        """Wait for `min_version` outside the queue, so that no other request is delayed."""
        wanted = request.options.min_version
        if wanted - self._version() > self._most_in_flight:
            raise InvalidInput(
                f"the newest version is {self._version()} here, and writes under way reach at most"
                f" {self._most_in_flight} further",
                field="min_version",
            )
        if len(self.waiters) >= self._version_waiters:
            raise Overloaded(f"{len(self.waiters)} requests wait for a version", retry_after=1)
        try:
            async with asyncio.timeout(request.deadline - monotonic()):
                await self.waiters.wait(lambda: self._version() >= wanted, client=request.client)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the memory did not reach version {wanted} before the deadline"
            ) from error

    def _version(self) -> int:
        return self._loaded().memory.view.version

    # The answering threads ---------------------------------------------------------------

    def _run(self, take: Take, way: Way) -> None:
        search_in_one_thread()
        while (work := take()) is not None:
            if not isinstance(work, Batch):
                work()
                continue
            start, outcomes = monotonic(), list[Outcome]()
            try:
                with way():
                    answer_batch(work, self._telemetry, outcomes)
            except BaseException as error:  # every waiting client must get an error
                outcomes += [partial(task.request.fail, error) for task in work.tasks]
            finally:
                self._queue.finish(work, seconds=monotonic() - start)
                _deliver(work, outcomes)


def _deliver(batch: Batch, outcomes: Sequence[Outcome]) -> None:
    """Deliver all outcomes at once: waking the event loop costs more than completing a request."""
    requests = [*(task.request for task in batch.tasks), *(request for request, _ in batch.dropped)]
    if not requests:
        return
    try:
        requests[0].loop.call_soon_threadsafe(_complete, outcomes)
    except RuntimeError:  # the event loop has ended, and nobody waits
        log.warning("answers came after the server had stopped", extra={"answers": len(outcomes)})


def _complete(outcomes: Sequence[Outcome]) -> None:
    for complete in outcomes:
        complete()


def answer_batch(batch: Batch, telemetry: Telemetry, outcomes: list[Outcome]) -> None:
    """Append an outcome for every task and every dropped request of a batch."""
    outcomes += [partial(request.fail, error) for request, error in batch.dropped]
    if not batch.tasks:
        return
    taken = monotonic()
    telemetry.batch_size.labels("predict").observe(len(batch))
    by_bundle: dict[int, list[QueryTask]] = {}  # two bundles during a reload
    for task in batch.tasks:
        telemetry.observe_stages({"queue": taken - task.request.queued})
        by_bundle.setdefault(id(task.request.loaded), []).append(task)
    for tasks in by_bundle.values():
        try:
            outcomes += _encode_and_search(tasks, taken, telemetry)
        except Exception as error:
            if len(tasks) == 1:
                outcomes.append(partial(tasks[0].request.fail, error))
                continue
            # Answer the tasks one by one, so a bad request does not fail the others in its batch.
            for task in tasks:
                try:
                    outcomes += _encode_and_search([task], taken, telemetry)
                except Exception as own_error:
                    outcomes.append(partial(task.request.fail, own_error))


def _encode_and_search(
    tasks: Sequence[QueryTask], taken: float, telemetry: Telemetry
) -> list[Outcome]:
    """Answer tasks of one bundle. Tasks that expire during encoding are not searched."""
    watch, predictor = Stopwatch(), tasks[0].request.loaded.predictor
    tasks = [_filtered(task, watch) for task in tasks]
    readings = [
        predictor.read(task.view, task.queries, task.request.options, watch) for task in tasks
    ]
    vectors = predictor.encode(chain.from_iterable(readings), watch)
    telemetry.observe_stages(watch.seconds)
    outcomes: list[Outcome] = []
    alike: dict[tuple[int, PredictOptions], list[_Read]] = {}
    now = monotonic()
    for task, of_task in zip(tasks, readings, strict=True):
        if error := task.request.useless(now):
            outcomes.append(partial(task.request.fail, error))
        else:
            alike.setdefault((id(task.view), task.request.options), []).append((task, of_task))
    for group in alike.values():
        outcomes += _search(group, vectors, dict(watch.seconds), taken, telemetry)
    return outcomes


def _filtered(task: QueryTask, watch: Stopwatch) -> QueryTask:
    """Return the task with a view of the labels alone that answer its request."""
    memory, options = task.request.loaded.memory, task.request.options
    if options.filter is None and options.tenant is None and not memory.is_timed(task.view):
        return task
    with watch.stage("filter"):
        view = memory.of_tenant(memory.active(task.view, times.now()), options.tenant)
        return replace(task, view=memory.only(view, options.filter))


def _search(
    group: Sequence[_Read],
    vectors: Mapping[str, Floats],
    encoding: dict[str, float],
    taken: float,
    telemetry: Telemetry,
) -> list[Outcome]:
    """Answer tasks of one view and equal options, given the vectors of all texts.

    Each task gets the stage durations of its whole batch, including `encoding`.
    """
    tasks, watch = [task for task, _ in group], Stopwatch()
    view, request = tasks[0].view, tasks[0].request
    readings = [of_query for _, of_task in group for of_query in of_task]
    searched = request.loaded.predictor.searched(view, readings, vectors, request.options, watch)
    outcomes: list[Outcome] = []
    answered: list[tuple[QueryTask, Results]] = []
    with watch.stage("score"):
        start = 0
        for task in tasks:
            own = searched[start : (start := start + len(task))]
            try:
                answered.append((task, _results(task, own, telemetry)))
            except KeymatchError as error:  # it has expired, or its answer would be too large
                outcomes.append(partial(task.request.fail, error))
    telemetry.observe_stages(watch.seconds)
    telemetry.corrected_queries.inc(sum(bool(query.reading.corrections) for query in searched))
    for task, (predictions, serialized) in answered:
        part = Answer(
            version=view.version,
            predictions=predictions,
            seconds={"queue": taken - task.request.queued, **encoding, **watch.seconds},
            serialized=serialized,
            filter_warnings=view.filter_warnings,
        )
        outcomes.append(partial(task.request.add, task, part))
    return outcomes


def _results(task: QueryTask, searched: Sequence[Query], telemetry: Telemetry) -> Results:
    """Score a task; serialize the results if its request asks for that.

    Raises the error of `useless` if nobody needs them any more, or what `serialize` raises.
    """
    request, predictor = task.request, task.request.loaded.predictor
    if error := request.useless(monotonic()):
        raise error
    predictions = predictor.predictions(searched, request.options)
    telemetry.unanswered_queries.inc(sum(not one.keywords for one in predictions))
    if request.serialize is None:
        return predictions, ()
    return (), tuple(map(request.serialize, predictions))
