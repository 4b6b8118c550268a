"""The queue between the event loop and the answering threads. Work is counted in plain queries.

A request is cut into tasks for the threads, and their answers are joined. A costly query counts as
several plain ones (`query_cost`). A request that nobody needs any more ends after its present task.

Small and large requests have a lane each, whose delay is controlled. While a lane is overloaded,
its requests are refused by their header, before their body is read.

A lane is overloaded if its minimum delay over an interval exceeds a target, as in CoDel. Sources:
Nichols and Jacobson, "Controlling Queue Delay" (2012); Maurer, "Fail at Scale" (2015), and `Codel`
of Facebook's Folly, which applies it to requests. A burst delays some requests and is then worked
off. But if even the shortest wait is too long, more arrives than can be answered.

Folly accepts every request into its queue. There are three differences:

- The delay is the age of the oldest waiting request, not of the one that is taken next. The
  latter says nothing in a queue that serves the newest first.
- A single delay longer than an interval is overload at once: the queue has been full that long.
- Overload ends after an interval without refusals. Refusals keep the queue short, so a short
  delay does not show that the load fell. Ending earlier would let the queue fill again.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Lock
from time import monotonic
from typing import Any

from service.core.errors import (
    ClientLeft,
    DeadlineExceeded,
    DelayExceeded,
    KeymatchError,
    Overloaded,
)
from service.core.memory.view import View
from service.core.options import OPTIONS, PredictOptions, complete_options
from service.core.tenant import Tenant
from service.core.types import Answer, Prediction
from service.engine.loaded_bundle import LoadedBundle
from service.settings import EngineSettings

# CPU milliseconds of a query besides those of its options (`core.options`), measured with them.
# Only the ratios matter: the queue measures this machine's speed. `python -m loadtests.latency`
# measures a query, `python -m loadtests.tenants` long misspelled queries and many rules.
_QUERY = 1.6
_CHARACTER = 0.02  # per character of a query's text, up to what an encoder reads
_ENCODED = 128  # characters
_SPELLED = 0.0015  # per character, as the spelling of all words is looked up
_STEP = 0.001  # per step of the rules that act on every query
_UNIT = 2.5  # a query at depth 200 with ten keywords

# The most that a task of several queries costs, so that no request occupies a thread for long. A
# thread takes several small requests up to this cost at once.
TASK_COST = 8

Serializer = Callable[[Prediction], bytes]  # called in the answering threads


def query_cost(options: PredictOptions, *, characters: float = 0.0, rules: int = 0) -> int:
    """Return how many plain queries one query with these options costs, at least 1.

    `characters` are the length of its text, and `rules` the steps of the rules that act on it,
    whatever its words are.
    """
    milliseconds = (
        _QUERY
        + _CHARACTER * min(characters, _ENCODED)
        + _SPELLED * characters
        + _STEP * rules
        + sum(one.cost(options) for one in OPTIONS if one.cost is not None)
    )
    return max(1, round(milliseconds / _UNIT))


class Client:
    """The sender of a request, who stays. The HTTP server passes its connection instead."""

    left = False  # whether the connection is closed
    on_leave: Callable[[], None] | None = None  # called in the event loop when it is closed

    def __init__(self) -> None:
        """Send a request now."""
        self.received = monotonic()  # when the whole request was received

    def arrived(self, queries: int) -> None:
        """Note that the request, with this many queries, has reached the engine."""


class QueryRequest:
    """One request. Threads cut and answer its tasks; the event loop does everything else.

    Cutting the first task takes the newest view, from which all tasks are answered.
    """

    queued: float  # when it began to wait, by `monotonic`

    def __init__(
        self,
        queries: Sequence[str],
        loaded: LoadedBundle,
        asked: Mapping[str, Any],
        *,
        deadline: float = math.inf,
        client: Client | None = None,
        serialize: Serializer | None = None,
    ) -> None:
        """Ask for answers until `deadline`, a time of `monotonic`.

        The `asked` options are completed for the answering bundle, at first `loaded`. Raises as
        `complete_options`. With `serialize`, each prediction is serialized as soon as it is made.
        A large answer is then never held as many objects, which would all be freed at once.
        """
        self.queries, self._asked, self.deadline = queries, asked, deadline
        self.client, self.serialize = client or Client(), serialize
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Answer] = self.loop.create_future()
        self.view: View | None = None
        self._cut = 0  # number of queries that are already in tasks
        self._parts: dict[int, Answer] = {}  # by the position of their first query
        self._missing = len(queries)
        self._characters = sum(map(len, queries)) / max(1, len(queries))  # of a query, on average
        self._answer_from(loaded)

    def _answer_from(self, loaded: LoadedBundle) -> None:
        self.loaded, self.options = loaded, complete_options(loaded.bundle.manifest, **self._asked)
        self.tenant = self.options.tenant
        view = loaded.memory.view
        rules = view.rules.of(self.tenant).common_work if view.has_rules else 0
        self.query_cost = query_cost(self.options, characters=self._characters, rules=rules)

    def join(self, loaded: LoadedBundle, *, queued: float) -> None:
        """Answer from `loaded`, which is another bundle if a reload ended during the wait.

        Raises as `complete_options` if this bundle lacks what the request asks for.
        """
        self.queued = queued
        if loaded is not self.loaded:
            self._answer_from(loaded)

    @property
    def cost(self) -> int:
        """The cost of the whole request, in plain queries."""
        return len(self.queries) * self.query_cost

    @property
    def uncut(self) -> int:
        """The cost of the queries that are not in a task yet, in plain queries."""
        return (len(self.queries) - self._cut) * self.query_cost

    def cut(self, most: int = TASK_COST) -> QueryTask:
        """Return the next task: one query, or several that together cost at most `most`."""
        if self.view is None:
            self.view = self.loaded.memory.view
        queries = max(1, most // self.query_cost)
        start, self._cut = self._cut, min(len(self.queries), self._cut + queries)
        return QueryTask(request=self, view=self.view, start=start, stop=self._cut)

    def useless(self, now: float) -> KeymatchError | None:
        """Return why nobody needs an answer any more, or None if it is still needed."""
        if self.client.left:
            return ClientLeft("the client disconnected before it was answered")
        if now > self.deadline or self.future.done():
            return DeadlineExceeded("the deadline passed while the request waited")
        return None

    def add(self, task: QueryTask, answer: Answer) -> None:
        """Keep a task's answer. The last one completes the request."""
        self._parts[task.start] = answer
        self._missing -= len(task)
        if not self._missing and not self.future.done():
            self.future.set_result(_joined([self._parts[start] for start in sorted(self._parts)]))

    def fail(self, error: BaseException) -> None:
        """End the request with `error`, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QueryTask:
    """The queries from `start` up to `stop` of a request, to be answered from `view`."""

    request: QueryRequest
    view: View
    start: int
    stop: int

    @property
    def queries(self) -> Sequence[str]:
        """The texts of the task."""
        return self.request.queries[self.start : self.stop]

    @property
    def cost(self) -> int:
        """The cost in plain queries."""
        return len(self) * self.request.query_cost

    def __len__(self) -> int:
        return self.stop - self.start


def _joined(parts: Sequence[Answer]) -> Answer:
    """Join the parts to one answer. Its wait is the longest; other stages add up."""
    if len(parts) == 1:
        return parts[0]
    seconds: dict[str, float] = {}
    for part in parts:
        for stage, value in part.seconds.items():
            before = seconds.get(stage, 0.0)
            seconds[stage] = max(before, value) if stage == "queue" else before + value
    return Answer(
        version=parts[0].version,
        predictions=tuple(prediction for part in parts for prediction in part.predictions),
        seconds=seconds,
        serialized=tuple(result for part in parts for result in part.serialized),
        filter_warnings=parts[0].filter_warnings,
    )


Dropped = tuple[QueryRequest, KeymatchError]
GPU_COST = 64  # `TASK_COST` with a GPU, where a batch takes little longer than a query
_WEIGHT = 0.05  # of the newest batch or body in a moving average
MOST_ARRIVING = 64  # requests being received at once; reading them takes some 50 ms

_FIRST_GUESS = 40.0  # bytes of a body per query


class DelayControl:
    """Decides whether a queue is overloaded, and how much may wait in it during overload.

    All times are seconds of one monotonic clock. `observe` is called by one thread at a time. Any
    thread may read `overloaded` and `limit`, and set `refused`.
    """

    def __init__(self, *, target: float, interval: float, threads: int) -> None:
        """Keep the delay near `target` seconds, or near the time of a full task if that is longer.

        On a slow processor, a few clients wait longer than the target for each other, and this is
        no overload. The interval grows with the target. Each of the threads may always have two
        queries waiting.
        """
        self.overloaded = False
        self.limit = 2 * threads  # queries that may wait in overload: those answered in time
        self.refused = False  # whether anything was refused during this interval
        self._least_target, self._intervals = target, interval / target
        self._target, self._threads = target, threads
        self._ends = 0.0
        self._shortest = 0.0  # seconds, of this interval

    @property
    def patience(self) -> float:
        """Seconds after which further waiting is useless while the queue is overloaded."""
        return 2 * self._target

    @property
    def _interval(self) -> float:
        return self._intervals * self._target

    def observe(self, delay: float, *, now: float, query_seconds: float) -> None:
        """Note the age of the queue's oldest request, in seconds, when a thread takes work.

        A thread answers a plain query in `query_seconds`, 0 if none has been answered yet.
        """
        self._target = max(self._least_target, TASK_COST * query_seconds)
        if now >= self._ends:
            stands = self._shortest > self._target
            idle = now - self._ends > self._interval  # the queue was empty for a whole interval
            self.overloaded = not idle and (stands or (self.overloaded and self.refused))
            self.refused = False
            self._shortest, self._ends = delay, now + self._interval
        self._shortest = min(self._shortest, delay)
        self.overloaded = self.overloaded or delay > self._interval
        answered = self._threads * self._target / query_seconds if query_seconds else 0
        self.limit = max(2 * self._threads, round(answered))


class Waiting:
    """The waiting requests of one tenant, in order of their arrival."""

    def __init__(self, served: int) -> None:
        """Start without requests, as if `served` plain queries had been taken."""
        self.requests: deque[QueryRequest] = deque()
        self.begun: QueryRequest | None = None  # the rest of a request of several tasks
        self.cost = 0  # in plain queries, of those that no thread has taken yet
        self.served = served  # plain queries taken so far, compared with other tenants

    def __bool__(self) -> bool:
        return self.begun is not None or bool(self.requests)


class Lane:
    """Waiting requests; used under the queue's lock.

    Tenants take turns: the next request is of the tenant that was served least, so none of them
    delays the others beyond its share. Requests without tenant are like those of one more.

    The order of a tenant's requests is first in, first out. If, during overload, more waits than
    can be answered in time, the newest is taken first: its client is the likeliest to be still
    waiting. Requests that have waited longer than the control's patience are dropped then. A
    request of several tasks is finished before the tenant's next begins: two at once would take
    twice as long each.
    """

    def __init__(self, control: DelayControl) -> None:
        """Create an empty lane."""
        self.control = control
        # The next counts are in plain queries:
        self.waiting = 0  # not taken by a thread yet
        self.running = 0  # taken by threads and not finished
        self.arriving = 0  # still being received; counted by the event loop
        self.served = 0  # taken so far, compared with the other lane
        self._tenants: dict[Tenant | None, Waiting] = {}  # those with waiting requests

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def has_share(self, tenant: Tenant | None, most: int, cost: int = 0) -> bool:
        """Return whether a tenant has what it may have of `most` waiting queries, with `cost` more.

        It may have all of them, or an equal share while others wait.
        """
        own = self._tenants.get(tenant)
        others = len(self._tenants) - (own is not None)
        if not others:
            return self.waiting + self.arriving + cost >= most
        return (0 if own is None else own.cost) + cost >= -(-most // (others + 1))

    def full(self, tenant: Tenant | None) -> bool:
        """Whether the lane is overloaded and no further request of a tenant is answered in time."""
        too_many = self.waiting + self.arriving >= self.control.limit
        return self.control.overloaded and too_many and self.has_share(tenant, self.control.limit)

    def put(self, request: QueryRequest) -> None:
        """Append a request."""
        own = self._tenants.get(request.tenant)
        if own is None:
            least = min((other.served for other in self._tenants.values()), default=0)
            own = self._tenants[request.tenant] = Waiting(least)
        own.requests.append(request)
        own.cost += request.cost
        self.waiting += request.cost

    def remove(self, request: QueryRequest) -> None:
        """Remove a request. If a thread has begun it, that thread will see that it ended."""
        own = self._tenants.get(request.tenant)
        if request.view is None and own is not None:
            with suppress(ValueError):  # a thread has dropped it already
                own.requests.remove(request)
                self._count_taken(own, request.uncut)
                self._forget(request.tenant)

    def take(
        self,
        most: int,
        *,
        task: int,
        now: float,
        query_seconds: float,
        but: Set[Tenant | None] = frozenset(),
    ) -> Batch:
        """Take tasks that together cost at most `most`, or one larger task.

        A task costs at most `task`, or is one query. A thread answers a plain query in
        `query_seconds`. Requests of the tenants `but` stay.
        """
        tasks: list[QueryTask] = []
        oldest = min((own.requests[0].queued for own in self._all if own.requests), default=now)
        dropped = self._drop_old(now)
        taken = 0
        while taken < most and (tenants := self._tenants.keys() - but):
            tenant = min(tenants, key=lambda one: self._tenants[one].served)
            own = self._tenants[tenant]
            end = -1 if self._too_many_wait else 0
            request = own.begun or own.requests[end]
            if tasks and taken + request.uncut > most:
                break
            if request is own.begun:
                own.begun = None
            else:
                del own.requests[end]
            if error := request.useless(now):
                self._count_taken(own, request.uncut)
                dropped.append((request, error))
            else:
                tasks.append(request.cut(task))
                taken += tasks[-1].cost
                own.served += tasks[-1].cost
                self._count_taken(own, tasks[-1].cost)
                if request.uncut:
                    own.begun = request
            self._forget(tenant)
        self.running += taken
        self.served += taken
        self.control.observe(now - oldest, now=now, query_seconds=query_seconds)
        return Batch(lane=self, tasks=tasks, dropped=dropped)

    def has_others(self, than: Set[Tenant | None]) -> bool:
        """Return whether a request of another tenant waits."""
        return not self._tenants.keys() <= than

    @property
    def _all(self) -> Iterable[Waiting]:
        return self._tenants.values()

    @property
    def _too_many_wait(self) -> bool:
        return self.control.overloaded and self.waiting > self.control.limit

    def _count_taken(self, own: Waiting, cost: int) -> None:
        own.cost -= cost
        self.waiting -= cost

    def _forget(self, tenant: Tenant | None) -> None:
        if not self._tenants[tenant]:
            del self._tenants[tenant]

    def _drop_old(self, now: float) -> list[Dropped]:
        """Drop old requests of the tenant that has most waiting, while too many wait."""
        dropped: list[Dropped] = []
        oldest = now - self.control.patience
        while self._too_many_wait:
            tenant, own = max(self._tenants.items(), key=lambda one: one[1].cost)
            if not own.requests or own.requests[0].queued >= oldest:
                break
            request = own.requests.popleft()
            self._count_taken(own, request.uncut)
            self._forget(tenant)
            error = request.useless(now) or DelayExceeded(
                "the service is overloaded; the request waited too long", retry_after=1
            )
            dropped.append((request, error))
            self.control.refused = True
        return dropped


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Tasks for one thread to answer, and dropped requests with their errors."""

    lane: Lane
    tasks: Sequence[QueryTask]
    dropped: Sequence[Dropped]

    @property
    def cost(self) -> int:
        """The cost of its tasks, in plain queries."""
        return sum(task.cost for task in self.tasks)

    @property
    def tenants(self) -> set[Tenant | None]:
        """The tenants of its tasks."""
        return {task.request.tenant for task in self.tasks}

    def __len__(self) -> int:
        return sum(map(len, self.tasks))


class TaskQueue:
    """A lane for small and one for large requests; the lane that was served less is next.

    So neither starves the other: while both have requests, each gets half of the threads' work.
    While every thread answers a large request, one more thread may take small ones (`take_spare`);
    they would otherwise wait for tens of milliseconds. The same thread answers a tenant's small
    requests while every thread answers those of other tenants.

    Each lane has its own overload state and limit: large requests always wait longer than small
    ones, and must not take their places.

    On the CPU, the threads that are free share the waiting requests evenly; the last free thread
    takes all, as batches of more queries cost less. A GPU computes for one thread at a time, so one
    thread takes all requests that came in during the last batch.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Take the number of threads, the largest queue and the delays from `settings`."""
        self._threads, self._most = settings.threads, settings.queue_queries
        gpu = settings.device != "cpu"
        self._task_cost = GPU_COST if gpu else TASK_COST
        self._computing = 1 if gpu else settings.threads  # threads that can compute at a time
        self._small, self._large = (
            Lane(
                DelayControl(
                    target=settings.queue_target_ms / 1000,
                    interval=settings.queue_interval_ms / 1000,
                    threads=settings.threads,
                )
            )
            for _ in range(2)
        )
        self._query_seconds = 0.0  # average time of a plain query in one thread
        self._errands: deque[Callable[[], None]] = deque()
        self._closed = False
        self._answering = 0  # threads that answer requests
        self._in_large = 0  # of these, a large one
        self._answered: Counter[Tenant | None] = Counter()  # batches being answered, by tenant
        lock = Lock()
        self._changed, self._spare = Condition(lock), Condition(lock)

    @property
    def depth(self) -> int:
        """The cost of all waiting and running requests, in plain queries."""
        return sum(lane.waiting + lane.running for lane in (self._small, self._large))

    def lane(self, cost: int) -> Lane:
        """Return the lane of a request that costs `cost` plain queries."""
        return self._small if cost <= self._task_cost else self._large

    def refusal(self, lane: Lane, cost: int, tenant: Tenant | None = None) -> KeymatchError | None:
        """Return why a tenant's request cannot join now, or None. Any thread may call this.

        While several tenants wait, only those that have their share waiting are refused.
        """
        held = lane.waiting + lane.running
        if held and held + lane.arriving + cost > self._most:
            if lane.has_share(tenant, self._most - lane.running, cost - 1):
                return Overloaded("too many queries are waiting", retry_after=1)
        if lane.full(tenant):
            lane.control.refused = True
            return DelayExceeded("the service is overloaded", retry_after=1)
        return None

    def put(self, request: QueryRequest) -> None:
        """Append a request. Raises `Overloaded` or `DelayExceeded` if it would wait too long.

        A request that costs more than its lane may hold is accepted when the lane is empty.
        """
        lane = self.lane(request.cost)
        if error := self.refusal(lane, request.cost, request.tenant):
            raise error
        with self._changed:
            if not lane:
                other = self._large if lane is self._small else self._small
                lane.served = other.served if other else 0
                if not other:
                    other.served = 0
            lane.put(request)
            self._changed.notify(-(-request.cost // self._task_cost))
            self._wake_spare()

    def withdraw(self, request: QueryRequest, error: KeymatchError) -> None:
        """End a request with `error`, and free its place. Only the event loop calls this."""
        with self._changed:
            self.lane(request.cost).remove(request)
        request.fail(error)

    def send(self, function: Callable[[], None]) -> Future[None]:
        """Make the next free thread call `function` before it takes tasks again."""
        future: Future[None] = Future()

        def errand() -> None:
            try:
                function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        with self._changed:
            self._errands.append(errand)
            self._changed.notify()
        return future

    def take(self) -> Batch | Callable[[], None] | None:
        """Wait for tasks or a function to call; None when the queue is closed and empty."""
        with self._changed:
            while True:
                if self._errands:
                    return self._errands.popleft()
                lanes = [lane for lane in (self._small, self._large) if lane]
                if lanes:
                    return self._take(min(lanes, key=lambda lane: lane.served))
                if self._closed:
                    return None
                self._changed.wait()

    def take_spare(self) -> Batch | None:
        """Wait for small requests that no other thread takes soon; None when closed."""
        with self._spare:
            while not self._closed:
                if self._small and self._in_large >= self._threads:
                    return self._take(self._small)
                if self._shut_out:
                    return self._take(self._small, but=self._answered.keys())
                self._spare.wait()
        return None

    @property
    def _shut_out(self) -> bool:
        """Whether all threads answer other tenants than one with a small request."""
        busy = self._answering >= self._threads
        return busy and self._small.has_others(self._answered.keys())

    def finish(self, batch: Batch, *, seconds: float) -> None:
        """Note that a batch has ended, and how many seconds it took."""
        with self._changed:
            self._answering -= 1
            batch.lane.running -= batch.cost
            self._in_large -= batch.lane is self._large
            self._answered -= Counter(batch.tenants)  # drops those without a batch
            if batch.tasks:
                each, mean = seconds / batch.cost, self._query_seconds
                self._query_seconds = mean + _WEIGHT * (each - mean) if mean else each

    def close(self) -> None:
        """Let the threads end once all waiting requests are answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._spare.notify_all()

    def _wake_spare(self) -> None:
        if (self._small and self._in_large >= self._threads) or self._shut_out:
            self._spare.notify()

    def _take(self, lane: Lane, *, but: Set[Tenant | None] = frozenset()) -> Batch:
        self._in_large += lane is self._large
        # A thread takes its share of the waiting requests: with all of them, others would be idle.
        free = max(1, self._computing - self._answering)
        share = self._task_cost if lane is self._large else -(-lane.waiting // free)
        self._answering += 1
        batch = lane.take(
            min(share, self._task_cost),
            task=self._task_cost,
            now=monotonic(),
            query_seconds=self._query_seconds,
            but=but,
        )
        self._answered.update(batch.tenants)
        self._wake_spare()
        return batch


class Arrivals:
    """Decides by a request's header whether it may join the queue; belongs to the event loop.

    Many requests can arrive before the first one is read and queued, so requests being received
    count as waiting. The number of queries in a body is estimated from its length.
    """

    def __init__(self, queue: TaskQueue) -> None:
        """Decide about requests for `queue`."""
        self._queue = queue
        self._bytes_per_query = _FIRST_GUESS
        self._requests = 0  # being received

    def refusal(self, body_bytes: int) -> KeymatchError | None:
        """Return why a request with a body of this size is refused, or None if it is accepted."""
        if self._requests >= MOST_ARRIVING:
            return DelayExceeded("too many requests come in at once", retry_after=1)
        queries = self._guess(body_bytes)
        return self._queue.refusal(self._queue.lane(queries), queries)

    def begin(self, body_bytes: int) -> Arrival:
        """Count a request until its `Arrival` ends."""
        queries = self._guess(body_bytes)
        self._requests += 1
        return Arrival(self, self._queue.lane(queries), queries, body_bytes)

    def end(self, body_bytes: int, queries: int) -> None:
        """Note that a request was received, and how many queries it held, if known."""
        self._requests -= 1
        if queries:
            self._bytes_per_query += _WEIGHT * (body_bytes / queries - self._bytes_per_query)

    def _guess(self, body_bytes: int) -> int:
        return max(1, round(body_bytes / self._bytes_per_query))


class Arrival:
    """One request that is being received, counted in its lane until `end`."""

    __slots__ = ("_arrivals", "_body_bytes", "_counted", "_lane", "_queries")

    def __init__(self, arrivals: Arrivals, lane: Lane, queries: int, body_bytes: int) -> None:
        self._arrivals, self._lane = arrivals, lane
        self._queries, self._body_bytes, self._counted = queries, body_bytes, True
        lane.arriving += queries

    def end(self, queries: int = 0) -> None:
        """Stop counting the request; it held `queries`, 0 if unknown."""
        if self._counted:
            self._counted = False
            self._lane.arriving -= self._queries
            self._arrivals.end(self._body_bytes, queries)
