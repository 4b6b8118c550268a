"""A lane of the queue: requests of similar size, which share one control of their delay."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from service.core.errors import DelayExceeded, KeymatchError
from service.engine.reading.delay_control import DelayControl
from service.engine.reading.query_request import QueryRequest, QueryTask

Dropped = tuple[QueryRequest, KeymatchError]


class Lane:
    """Waiting requests in order of their arrival; used under the queue's lock.

    First in, first out. While, during overload, more waits than can be answered in time, what has
    waited longer than the control's patience is dropped, and the newest is first: those who came
    last are the likeliest to be still there when they are answered. A request of several tasks that
    has been begun is finished before the next: two at once would take twice as long each.
    """

    def __init__(self, control: DelayControl) -> None:
        """Empty at first."""
        self.control = control
        # All in plain queries:
        self.waiting = 0  # what no thread has taken
        self.running = 0  # what threads have taken and not finished
        self.arriving = 0  # what is on its way from the socket to here; the event loop counts
        self.served = 0  # what was taken, counted against the other lane's
        self._requests: deque[QueryRequest] = deque()
        self._begun: QueryRequest | None = None  # the rest of a request of several tasks

    def __bool__(self) -> bool:
        return self._begun is not None or bool(self._requests)

    @property
    def interpreted_next(self) -> bool:
        """Whether the next task is one of those that keep the interpreter busy."""
        if self._begun is not None:
            return self._begun.interpreted
        if not self._requests:
            return False
        return self._requests[-1 if self._too_many_wait else 0].interpreted

    @property
    def full(self) -> bool:
        """Whether, during overload, as much waits as is answered in time."""
        control = self.control
        return control.overloaded and self.waiting + self.arriving >= control.limit

    def put(self, request: QueryRequest) -> None:
        """Append a request."""
        self._requests.append(request)
        self.waiting += request.cost

    def remove(self, request: QueryRequest) -> None:
        """Take a request out; one that a thread has begun stays until the thread sees it again."""
        if request.view is None:
            with suppress(ValueError):  # a thread has dropped it
                self._requests.remove(request)
                self.waiting -= request.uncut

    def take(
        self, most: int, *, task: int, now: float, per_second: float
    ) -> tuple[list[QueryTask], list[Dropped]]:
        """Tasks that cost at most `most`, or one larger task, and the requests given up.

        A task costs at most `task`, or is one query. `per_second` is how many plain queries can be
        answered in a second.
        """
        tasks: list[QueryTask] = []
        delay = now - self._requests[0].queued if self._requests else 0.0
        dropped = self._drop_old(now)
        taken = 0
        while (request := self._next()) is not None:
            if tasks and taken + request.uncut > most:
                self._put_back(request)
                break
            error = request.useless(now)
            if error is not None:
                self.waiting -= request.uncut
                dropped.append((request, error))
                continue
            tasks.append(request.cut(task))
            taken += tasks[-1].cost
            if request.uncut:
                self._begun = request
            if taken >= most:
                break
        self.waiting -= taken
        self.running += taken
        self.served += taken
        self.control.observe(delay, now=now, per_second=per_second)
        return tasks, dropped

    def _next(self) -> QueryRequest | None:
        if self._begun is not None:
            request, self._begun = self._begun, None
            return request
        if not self._requests:
            return None
        return self._requests.pop() if self._too_many_wait else self._requests.popleft()

    def _put_back(self, request: QueryRequest) -> None:
        if self._too_many_wait:
            self._requests.append(request)
        else:
            self._requests.appendleft(request)

    @property
    def _too_many_wait(self) -> bool:
        return self.control.overloaded and self.waiting > self.control.limit

    def _drop_old(self, now: float) -> list[Dropped]:
        dropped: list[Dropped] = []
        oldest = now - self.control.patience
        while self._too_many_wait and self._requests and self._requests[0].queued < oldest:
            request = self._requests.popleft()
            self.waiting -= request.uncut
            error = request.useless(now) or DelayExceeded(
                "the service is overloaded; the request waited too long", retry_after=1
            )
            dropped.append((request, error))
            self.control.refused = True
        return dropped
