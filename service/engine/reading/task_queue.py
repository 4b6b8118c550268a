"""The queue between the event loop and the answering threads; counts work in plain queries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Lock
from time import monotonic

from service.core.errors import DelayExceeded, KeymatchError, Overloaded
from service.engine.reading.delay_control import DelayControl
from service.engine.reading.lane import Dropped, Lane
from service.engine.reading.query_request import TASK_COST, QueryRequest, QueryTask
from service.settings import EngineSettings

BATCH_COST = 8  # at most, of several requests, that a thread takes in one go
GPU_COST = 64  # of a task and of a batch, with a GPU, which takes little longer than for one query
_WEIGHT = 0.05  # of the newest batch in the mean time of a plain query


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What a thread takes: tasks to answer, and requests that are given up with an error."""

    lane: Lane
    tasks: Sequence[QueryTask]
    dropped: Sequence[Dropped]

    @property
    def cost(self) -> int:
        """What its tasks cost, in plain queries."""
        return sum(task.cost for task in self.tasks)

    @property
    def interpreted(self) -> bool:
        """Whether it keeps the interpreter busy."""
        return any(task.request.interpreted for task in self.tasks)

    def __len__(self) -> int:
        return sum(map(len, self.tasks))


@dataclass(frozen=True, kw_only=True, slots=True)
class Errand:
    """Something else for an answering thread to do."""

    function: Callable[[], None]
    future: Future[None]


class TaskQueue:
    """Small and large requests in a lane each; the lane that was served less is next.

    So neither starves the other: while both wait, each gets half of the threads' work, however
    many requests that are. Overload and the limit on what waits or runs are each lane's own: large
    requests wait longer than small ones by nature, and must not take the places of these.

    One thread at a time puts evidence and many keywords together: it is the interpreter's work, in
    which a second thread would gain nothing, and small requests would wait until either has
    finished. Where small ones came meanwhile, such work of large requests then rests for as long as
    it took.

    On the processor, threads share what waits evenly. A GPU computes for one thread at a time, so
    that one takes all that has come in while the last batch ran.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """`settings` give the threads, the most queries that wait or run, and the delays."""
        self._threads, self._most = settings.threads, settings.queue_queries
        gpu = settings.device != "cpu"
        self._task_cost = GPU_COST if gpu else TASK_COST
        self._batch_cost = GPU_COST if gpu else BATCH_COST
        self._sharing = 1 if gpu else settings.threads  # threads among which a batch is shared out
        self._small, self._large = (
            Lane(
                DelayControl(
                    target=settings.queue_target_ms / 1000,
                    interval=settings.queue_interval_ms / 1000,
                    floor=2 * settings.threads,
                )
            )
            for _ in range(2)
        )
        self._interpreting = False  # whether a thread keeps the interpreter busy
        self._rests_until = 0.0  # by `monotonic`, such work of large requests
        self._small_came = False  # since such work was begun
        self._query_seconds = 0.0  # that a plain query takes one thread, in the mean
        self._errands: deque[Errand] = deque()
        self._closed = False
        self._changed = Condition(Lock())

    @property
    def depth(self) -> int:
        """What waits or runs, in plain queries."""
        return sum(lane.waiting + lane.running for lane in (self._small, self._large))

    def lane(self, cost: int) -> Lane:
        """The lane of a request that costs so many plain queries."""
        return self._small if cost <= self._task_cost else self._large

    def refusal(self, lane: Lane, cost: int) -> KeymatchError | None:
        """Why a request cannot join now, None if it can; called by any thread."""
        held = lane.waiting + lane.running
        if held and held + lane.arriving + cost > self._most:
            return Overloaded("too many queries are waiting", retry_after=1)
        if lane.full:
            lane.control.refused = True
            return DelayExceeded("the service is overloaded", retry_after=1)
        return None

    def put(self, request: QueryRequest) -> None:
        """Append a request; raises `Overloaded` or `DelayExceeded` where it would wait in vain.

        A request that costs more than its lane may hold is accepted when the lane is empty.
        """
        lane = self.lane(request.cost)
        error = self.refusal(lane, request.cost)
        if error is not None:
            raise error
        with self._changed:
            if not lane:
                other = self._large if lane is self._small else self._small
                lane.served = other.served if other else 0
                if not other:
                    other.served = 0
            lane.put(request)
            self._small_came |= lane is self._small
            self._changed.notify(-(-request.cost // self._task_cost))

    def withdraw(self, request: QueryRequest, error: KeymatchError) -> None:
        """End a request with `error`; in the event loop. It no longer takes the place of others."""
        with self._changed:
            self.lane(request.cost).remove(request)
        request.fail(error)

    def send(self, function: Callable[[], None]) -> Future[None]:
        """Let the next free thread call `function`, before it takes tasks again."""
        errand = Errand(function=function, future=Future())
        with self._changed:
            self._errands.append(errand)
            self._changed.notify()
        return errand.future

    def take(self) -> Batch | Errand | None:
        """Wait for something to do; None when the queue is closed and empty."""
        with self._changed:
            while True:
                if self._errands:
                    return self._errands.popleft()
                lane = self._next_lane()
                if lane is not None:
                    return self._take(lane)
                if self._closed and not self._small and not self._large:
                    return None
                self._changed.wait(self._rest_left())

    def finish(self, batch: Batch, *, seconds: float) -> None:
        """Note that a batch, which took so many seconds, runs no longer."""
        with self._changed:
            batch.lane.running -= batch.cost
            if batch.interpreted:
                self._interpreting = False
                if batch.lane is self._large and self._small_came:
                    self._rests_until = monotonic() + seconds
                self._changed.notify()
            if batch.tasks:
                each, mean = seconds / batch.cost, self._query_seconds
                self._query_seconds = mean + _WEIGHT * (each - mean) if mean else each

    def close(self) -> None:
        """Let the threads end once everything that waits is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next_lane(self) -> Lane | None:
        lanes = [lane for lane in (self._small, self._large) if lane and not self._waits(lane)]
        return min(lanes, key=lambda lane: lane.served, default=None)

    def _waits(self, lane: Lane) -> bool:
        """Whether a lane's next task must wait until the interpreter is free, or has rested."""
        if not lane.interpreted_next:
            return False
        return self._interpreting or (lane is self._large and self._rest_left() is not None)

    def _rest_left(self) -> float | None:
        """For how many seconds the interpreter still rests from large requests, None where not."""
        left = self._rests_until - monotonic()
        return left if left > 0 else None

    def _take(self, lane: Lane) -> Batch:
        # What waits is shared among the threads: one that took all of it would let the others idle.
        share = self._task_cost if lane is self._large else -(-lane.waiting // self._sharing)
        if lane.interpreted_next:
            share = 1  # one task, which is one query
        per_second = self._threads / self._query_seconds if self._query_seconds else 0.0
        tasks, dropped = lane.take(
            min(share, self._batch_cost),
            task=self._task_cost,
            now=monotonic(),
            per_second=per_second,
        )
        batch = Batch(lane=lane, tasks=tasks, dropped=dropped)
        if batch.interpreted:
            self._interpreting, self._small_came = True, False
        return batch
