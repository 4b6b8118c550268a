"""Requests on their way count as if they waited, and one is refused by the length of its body."""

import pytest

from service.core.errors import DelayExceeded, Overloaded
from service.engine.reading.arrivals import MOST, Arrivals
from service.engine.reading.query_request import TASK_COST
from service.engine.reading.task_queue import TaskQueue
from service.settings import EngineSettings

QUERY_BYTES = 40  # what a query's share of a body is taken for at first


def bytes_of(queries: int) -> int:
    return queries * QUERY_BYTES


@pytest.fixture
def queue() -> TaskQueue:
    return TaskQueue(EngineSettings(threads=1))


@pytest.fixture
def arrivals(queue: TaskQueue) -> Arrivals:
    return Arrivals(queue)


def test_an_idle_service_refuses_nothing(arrivals: Arrivals) -> None:
    assert arrivals.refusal(bytes_of(1)) is None
    assert arrivals.refusal(bytes_of(256)) is None
    assert arrivals.refusal(0) is None  # of a body whose length is unknown


def test_a_request_counts_in_the_lane_of_its_size_until_it_ends(
    arrivals: Arrivals, queue: TaskQueue
) -> None:
    small, large = queue.lane(1), queue.lane(TASK_COST + 1)
    first = arrivals.begin(bytes_of(2))
    second = arrivals.begin(bytes_of(100))
    assert (small.arriving, large.arriving) == (2, 100)
    first.end()
    assert (small.arriving, large.arriving) == (0, 100)
    second.end(queries=90)
    assert (small.arriving, large.arriving) == (0, 0)


def test_a_request_ends_once(arrivals: Arrivals, queue: TaskQueue) -> None:
    """It reaches the queue, and later its answer is sent or its connection is lost."""
    for _ in range(2 * MOST):
        arrival = arrivals.begin(bytes_of(1))
        arrival.end(queries=1)
        arrival.end()
    assert queue.lane(1).arriving == 0
    assert arrivals.refusal(bytes_of(1)) is None


def test_no_more_come_in_at_once_than_the_event_loop_reads_in_time(arrivals: Arrivals) -> None:
    under_way = [arrivals.begin(bytes_of(1)) for _ in range(MOST)]
    assert isinstance(arrivals.refusal(bytes_of(1)), DelayExceeded)
    under_way[0].end()
    assert arrivals.refusal(bytes_of(1)) is None


def test_what_comes_in_fills_an_overloaded_lane(arrivals: Arrivals, queue: TaskQueue) -> None:
    control = queue.lane(1).control
    control.overloaded, control.limit = True, 3
    for _ in range(3):
        assert arrivals.refusal(bytes_of(1)) is None
        arrivals.begin(bytes_of(1))
    assert isinstance(arrivals.refusal(bytes_of(1)), DelayExceeded)
    assert control.refused
    assert arrivals.refusal(bytes_of(100)) is None  # its lane is not overloaded


def test_what_comes_in_counts_against_the_whole_queue() -> None:
    queue = TaskQueue(EngineSettings(threads=1, queue_queries=10))
    arrivals = Arrivals(queue)
    queue.lane(1).waiting = 4
    arrivals.begin(bytes_of(3))
    assert arrivals.refusal(bytes_of(3)) is None
    error = arrivals.refusal(bytes_of(4))
    assert isinstance(error, Overloaded) and not isinstance(error, DelayExceeded)


def test_the_guess_follows_the_bodies_that_came(arrivals: Arrivals, queue: TaskQueue) -> None:
    for _ in range(200):
        arrivals.begin(1_000).end(queries=10)  # 100 bytes a query
    arrivals.begin(500)
    assert queue.lane(1).arriving == 5
    for _ in range(200):
        arrivals.begin(1_000).end()  # refused by its content, so nobody knows what it held
    arrivals.begin(300)
    assert queue.lane(1).arriving == 8
