"""The cost of queries, lanes, overload measured by delay, and which requests may join the queue."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.errors import ClientLeft, DeadlineExceeded, DelayExceeded, Overloaded
from service.core.label_filter import parse
from service.core.tenant import Tenant
from service.core.types import PredictOptions
from service.engine.reading.task_queue import (
    GPU_COST,
    MOST_ARRIVING,
    TASK_COST,
    Arrivals,
    Batch,
    Client,
    DelayControl,
    QueryRequest,
    TaskQueue,
    query_cost,
)
from service.settings import EngineSettings
from tests.support.queue_desk import QueueDesk, errors, taken
from tests.support.waiting import wait_for

TARGET, INTERVAL = 0.010, 0.100
QUERY_BYTES = 40  # assumed bytes per query, until some are measured
COSTLY = PredictOptions(depth=2_000, top_k=1_000, explain=True)
STANDS = (0.050, 0.3)  # a delay far above the target, for three intervals


class Clocked:
    """A `DelayControl` with a clock that the test moves."""

    def __init__(self) -> None:
        self.control = DelayControl(target=TARGET, interval=INTERVAL, threads=2)
        self.now = 100.0

    def serve(self, delay: float, seconds: float, *, query_seconds: float = 0.001) -> bool:
        """Observe `delay` every millisecond; return whether the queue is overloaded at the end."""
        for _ in range(round(seconds * 1000)):
            self.now += 0.001
            self.control.observe(delay, now=self.now, query_seconds=query_seconds)
        return self.control.overloaded


@pytest.fixture
def clocked() -> Clocked:
    return Clocked()


@pytest.mark.parametrize(
    ("steps", "overloaded"),
    [
        ([(0.009, 1)], False),  # within the target
        ([(0.020, 0.09)], False),
        ([(0.020, 0.12)], True),  # above the target for an interval
        ([(0.101, 0.001)], True),  # a delay of a whole interval is overload at once
        ([STANDS, (0.001, 0.05)], True),
        ([STANDS, (0.001, 0.25)], False),  # an interval of short delays ends overload
    ],
)
def test_a_queue_that_stands_for_an_interval_is_overloaded(
    clocked: Clocked, steps: list[tuple[float, float]], overloaded: bool
) -> None:
    assert [clocked.serve(*step) for step in steps][-1] == overloaded


def test_one_short_delay_in_an_interval_tells_a_burst_from_a_standing_queue(
    clocked: Clocked,
) -> None:
    for _ in range(20):
        assert not clocked.serve(0.080, 0.08)
        assert not clocked.serve(0.0, 0.002)


def test_overload_goes_on_while_something_is_refused(clocked: Clocked) -> None:
    clocked.serve(*STANDS)
    for _ in range(20):
        clocked.control.refused = True
        assert clocked.serve(0.001, 0.05)
    assert not clocked.serve(0.001, 0.25)


def test_what_was_before_an_idle_time_does_not_count(clocked: Clocked) -> None:
    clocked.serve(*STANDS)
    clocked.control.refused = True
    clocked.now += 10
    assert not clocked.serve(0.0, 0.001)


def test_as_much_may_wait_as_is_answered_within_the_target(clocked: Clocked) -> None:
    for query_seconds, limit in ((0.0, 4), (0.001, 20), (0.0001, 200)):
        clocked.serve(0, 0.01, query_seconds=query_seconds)
        assert clocked.control.limit == limit
        assert clocked.control.patience == 2 * TARGET


@pytest.mark.parametrize("query_seconds", [0.007, 0.05])
def test_on_a_slow_processor_as_much_may_wait_as_one_task_per_thread(
    clocked: Clocked, query_seconds: float
) -> None:
    waited = (TASK_COST - 1) * query_seconds  # the last of as many clients, on one thread
    assert not clocked.serve(waited, 3, query_seconds=query_seconds)
    assert clocked.control.limit == 2 * TASK_COST
    assert clocked.control.patience == pytest.approx(2 * TASK_COST * query_seconds)
    assert clocked.serve(1.2 * TASK_COST * query_seconds, 10, query_seconds=query_seconds)


def test_a_plain_query_costs_one_and_more_of_anything_costs_more() -> None:
    for plain in ({}, {"depth": 1, "top_k": 1}, {"depth": 300}, {"top_k": 100}):
        assert query_cost(PredictOptions(**plain)) == 1
    few: dict[str, Any] = {"depth": 1_000, "top_k": 500}
    further: list[dict[str, Any]] = [{"items": ("a",) * 200}, {"match": ("exact",)}]
    for more in ({"depth": 2_000}, {"top_k": 1_000}, {"explain": True}, *further):
        assert query_cost(PredictOptions(**few | more)) > query_cost(PredictOptions(**few))


@pytest.fixture
def desk_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., QueueDesk]]:
    desks: list[QueueDesk] = []

    def make(**options: Any) -> QueueDesk:
        desks.append(QueueDesk(monkeypatch, **options))
        return desks[-1]

    yield make
    for desk in desks:
        desk.loop.close()


@pytest.fixture
def desk(desk_of: Callable[..., QueueDesk]) -> QueueDesk:
    return desk_of()


def test_a_costly_query_counts_as_several_and_is_a_task_by_itself(desk: QueueDesk) -> None:
    costly, cost = desk.put(3, options=COSTLY), query_cost(COSTLY)
    assert cost > TASK_COST
    assert desk.queue.depth == 3 * cost
    for number in range(3):
        [task] = desk.take().tasks
        assert (task.request, list(task.queries)) == (costly, [f"q{number}"])
    assert desk.queue.depth == 0


def test_first_in_first_out_in_batches_of_what_waits(desk: QueueDesk) -> None:
    requests = [desk.put(1) for _ in range(TASK_COST + 3)]
    assert taken(desk.take()) == requests[:TASK_COST]
    assert taken(desk.take()) == requests[TASK_COST:]


def test_what_waits_is_shared_among_the_threads_of_a_cpu(desk_of: Callable[..., QueueDesk]) -> None:
    """A GPU computes for only one of four threads at a time, which takes all that waits."""
    desk = desk_of(threads=4)
    for _ in range(8):
        desk.put(1)
    assert len(desk.take()) == 2
    desk = desk_of(device="cuda", threads=4)
    single = [desk.put(1) for _ in range(GPU_COST + 5)]
    assert taken(desk.take()) == single[:GPU_COST]
    assert taken(desk.take()) == single[GPU_COST:]
    desk.put(GPU_COST - 1)
    desk.put(2)
    assert [len(desk.take()), len(desk.take())] == [GPU_COST - 1, 2]
    large = desk.put(2 * GPU_COST + 1)
    batches = [desk.take() for _ in range(3)]
    assert [len(batch) for batch in batches] == [GPU_COST, GPU_COST, 1]
    assert {request for batch in batches for request in taken(batch)} == {large}


def test_the_last_free_thread_takes_all_that_waits(desk_of: Callable[..., QueueDesk]) -> None:
    desk = desk_of(threads=2)
    for _ in range(6):
        desk.put(1)
    first, second = desk.queue.take(), desk.queue.take()
    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    assert [len(first), len(second)] == [3, 3]
    for _ in range(4):
        desk.put(1)
    desk.queue.finish(first, seconds=0.01)
    assert len(desk.take()) == 4  # the other thread still answers `second`


def test_a_large_request_is_cut_into_tasks_of_one_view_and_finished_first(desk: QueueDesk) -> None:
    first, second = desk.put(3 * TASK_COST), desk.put(2 * TASK_COST)
    batches = [desk.take() for _ in range(5)]
    assert [taken(batch) for batch in batches] == [[first]] * 3 + [[second]] * 2
    texts = [text for batch in batches[:3] for text in batch.tasks[0].queries]
    assert texts == list(first.queries)


@pytest.mark.parametrize(("queries", "options"), [(30 * TASK_COST, PredictOptions()), (8, COSTLY)])
def test_small_and_large_requests_take_turns_by_cost(
    desk: QueueDesk, queries: int, options: PredictOptions
) -> None:
    large = desk.put(queries, options=options)
    for _ in range(16 * TASK_COST):
        desk.put(1)
    cost = {True: 0, False: 0}
    for _ in range(12):
        batch = desk.take()
        cost[taken(batch)[0] is large] += batch.cost
    assert abs(cost[True] - cost[False]) <= query_cost(options) * (options is COSTLY)


def test_a_lane_that_was_idle_has_saved_nothing_up(desk: QueueDesk) -> None:
    for _ in range(20):
        desk.put(1)
        desk.take()
    large = desk.put(10 * TASK_COST)
    for _ in range(3 * TASK_COST):
        desk.put(1)
    turns = [taken(desk.take())[0] is large for _ in range(6)]
    assert sum(turns) == 3


def test_expired_requests_and_those_whose_clients_left_are_dropped(desk: QueueDesk) -> None:
    client = Client()
    desk.put(1, deadline=0.05)
    begun = desk.put(16, options=COSTLY, client=client)
    kept = desk.put(1)
    desk.now += 0.06
    first, second = desk.take(), desk.take()
    assert taken(first) == [kept] and errors(first) == [DeadlineExceeded]
    assert taken(second) == [begun]
    client.left = True
    third = desk.take()
    assert not third.tasks and errors(third) == [ClientLeft]
    assert desk.queue.depth == 0


def test_a_request_that_is_withdrawn_takes_no_place_any_more(desk: QueueDesk) -> None:
    withdrawn, kept = desk.put(3), desk.put(1)
    desk.queue.withdraw(withdrawn, ClientLeft("left"))
    assert desk.queue.depth == 1
    assert isinstance(withdrawn.future.exception(), ClientLeft)
    assert taken(desk.take()) == [kept]
    begun = desk.put(2 * TASK_COST)  # if begun, it leaves the queue at the next `take`
    assert taken(desk.take()) == [begun]
    desk.queue.withdraw(begun, ClientLeft("left"))
    assert desk.queue.depth == TASK_COST
    assert errors(desk.take()) == [DeadlineExceeded]
    assert desk.queue.depth == 0


def test_in_overload_the_old_are_dropped_and_the_newest_come_first(desk: QueueDesk) -> None:
    desk.overload()
    old = [desk.request(1) for _ in range(3)]
    desk.now += 0.025
    new = [desk.request(1) for _ in range(2 * TASK_COST)]
    lane = desk.queue.lane(1)
    for request in (*old, *new):  # `lane.put` lets them in, as before the overload
        lane.put(request)
    batch = desk.take()
    assert [request for request, _ in batch.dropped] == old
    assert set(errors(batch)) == {DelayExceeded}
    assert taken(batch) == new[: -TASK_COST - 1 : -1]


def test_the_few_that_can_be_answered_in_time_are_not_dropped_for_a_stall(desk: QueueDesk) -> None:
    desk.overload()
    few = [desk.put(1) for _ in range(desk.queue.lane(1).control.limit)]
    desk.now += 1.0  # as if the machine was busy with something else
    batch = desk.take()
    assert errors(batch) == []
    assert taken(batch) == few[: len(taken(batch))]


def test_in_overload_no_more_may_wait_than_is_answered_in_time(desk: QueueDesk) -> None:
    desk.overload()
    for _ in range(desk.queue.lane(1).control.limit):
        desk.put(1)
    with pytest.raises(DelayExceeded):
        desk.put(1)
    desk.put(2 * TASK_COST)  # the other lane is not overloaded


def test_each_lane_has_a_limit_in_plain_queries(desk_of: Callable[..., QueueDesk]) -> None:
    desk = desk_of(queue_queries=10)
    desk.put(64)  # more than the lane may hold, but alone in it
    with pytest.raises(Overloaded, match="too many queries"):
        desk.put(TASK_COST + 1)
    for _ in range(10):
        desk.put(1)
    with pytest.raises(Overloaded, match="too many queries"):
        desk.put(1)


def test_a_closed_queue_gives_out_what_waits_and_then_nothing(desk: QueueDesk) -> None:
    request = desk.put(1)
    desk.queue.close()
    assert taken(desk.take()) == [request]
    assert desk.queue.take() is None


@pytest.mark.parametrize("error", [None, RuntimeError("bad allocation")])
def test_a_waiting_thread_runs_a_function(desk: QueueDesk, error: Exception | None) -> None:
    def run() -> None:
        work = desk.queue.take()
        assert callable(work)
        work()

    def function() -> None:
        if error is not None:
            raise error

    thread = threading.Thread(target=run)
    thread.start()
    sent = desk.queue.send(function)
    assert sent.exception(10) is error
    thread.join(10)


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "leave"]), st.integers(1, 3 * TASK_COST)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 60)),
    ),
    max_size=120,
)


@settings(max_examples=150)
@given(steps=steps, threads=st.integers(1, 4))
def test_every_query_comes_out_exactly_once(steps: list[tuple[str, int]], threads: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        desk = QueueDesk(monkeypatch, threads=threads, queue_queries=100)
        came_out: dict[QueryRequest, list[str]] = {}

        def take() -> None:
            batch = desk.take(seconds=0.004)
            for task in batch.tasks:
                came_out[task.request] += task.queries
            for request, _ in batch.dropped:
                came_out[request] += list(request.queries)[len(came_out[request]) :]

        for step, amount in steps:
            if step in ("put", "leave"):
                client = Client()
                request = desk.request(amount, client=client, deadline=0.1)
                try:
                    desk.queue.put(request)
                except Overloaded:
                    continue
                came_out[request] = []
                client.left = step == "leave"
            elif step == "wait":
                desk.now += amount / 1000
            elif desk.queue.depth:
                take()
        while desk.queue.depth:
            take()
        assert all(texts == list(request.queries) for request, texts in came_out.items())
        assert not desk.queue.lane(1).waiting and not desk.queue.lane(100).waiting
        desk.loop.close()


def test_a_spare_thread_takes_small_requests_while_large_ones_are_answered(
    desk_of: Callable[..., QueueDesk],
) -> None:
    desk, found = desk_of(), list[Batch | None]()

    def spare() -> None:
        while found[-1:] != [None]:
            found.append(desk.queue.take_spare())

    thread = threading.Thread(target=spare)
    thread.start()
    try:
        desk.put(1)
        desk.take()  # nothing large: the thread of `take` answers it
        large = desk.put(100)
        batch = desk.queue.take()
        assert isinstance(batch, Batch) and taken(batch) == [large]
        small = [desk.put(1), desk.put(TASK_COST)]
        wait_for(lambda: sum(len(taken(one)) for one in found if one) == 2)
        assert [request for one in found if one for request in taken(one)] == small
        for one in (batch, *found):
            assert one is not None
            desk.queue.finish(one, seconds=0.01)
        waiting = desk.queue.take()  # the rest of the large request
        assert isinstance(waiting, Batch) and taken(waiting) == [large]
        desk.queue.finish(waiting, seconds=0.01)
        last = desk.put(1)
        batches = [desk.take() for _ in range(2)]
        assert last in [request for one in batches for request in taken(one)]
    finally:
        desk.queue.close()
        thread.join()
    assert found[-1] is None


def bytes_of(queries: int) -> int:
    return queries * QUERY_BYTES


@pytest.fixture
def queue() -> TaskQueue:
    return TaskQueue(EngineSettings(threads=1))


@pytest.fixture
def arrivals(queue: TaskQueue) -> Arrivals:
    return Arrivals(queue)


def test_a_request_counts_in_the_lane_of_its_size_until_it_ends(
    arrivals: Arrivals, queue: TaskQueue
) -> None:
    small, large = queue.lane(1), queue.lane(TASK_COST + 1)
    for body_bytes in (bytes_of(1), bytes_of(256), 0):  # 0: unknown length
        assert arrivals.refusal(body_bytes) is None  # the service is idle
    first = arrivals.begin(bytes_of(2))
    second = arrivals.begin(bytes_of(100))
    assert (small.arriving, large.arriving) == (2, 100)
    first.end()
    assert (small.arriving, large.arriving) == (0, 100)
    second.end(queries=90)
    assert (small.arriving, large.arriving) == (0, 0)


def test_a_request_ends_once(arrivals: Arrivals, queue: TaskQueue) -> None:
    """`end` is called when it joins the queue, and again when it is answered or disconnected."""
    for _ in range(2 * MOST_ARRIVING):
        arrival = arrivals.begin(bytes_of(1))
        arrival.end(queries=1)
        arrival.end()
    assert queue.lane(1).arriving == 0
    assert arrivals.refusal(bytes_of(1)) is None


def test_no_more_come_in_at_once_than_the_event_loop_reads_in_time(arrivals: Arrivals) -> None:
    under_way = [arrivals.begin(bytes_of(1)) for _ in range(MOST_ARRIVING)]
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
        arrivals.begin(1_000).end(queries=10)  # 100 bytes per query
    arrivals.begin(500)
    assert queue.lane(1).arriving == 5
    for _ in range(200):
        arrivals.begin(1_000).end()  # refused: its number of queries is unknown
    arrivals.begin(300)
    assert queue.lane(1).arriving == 8


MOST_WAITING = EngineSettings().queue_queries
HOSTILE, QUIET = (PredictOptions(tenant=Tenant("shop", name)) for name in ("hostile", "quiet"))


def test_tenants_take_turns(desk: QueueDesk) -> None:
    """A tenant waits for one request of each other tenant at most, however many these have."""
    for _ in range(20):
        desk.put(TASK_COST, options=HOSTILE)
    desk.put(4 * TASK_COST, options=HOSTILE)
    desk.take()
    few = [desk.put(TASK_COST, options=QUIET) for _ in range(3)]
    small = [taken(desk.take())[0] for _ in range(14)]
    answered = [request for request in small if len(request.queries) == TASK_COST]
    assert [answered.index(request) <= 2 * place + 1 for place, request in enumerate(few)] == [
        True
    ] * 3


def test_a_tenant_does_not_wait_while_every_thread_answers_others(desk: QueueDesk) -> None:
    found: list[Batch | None] = []

    def spare() -> None:
        while found[-1:] != [None]:
            found.append(desk.queue.take_spare())

    thread = threading.Thread(target=spare)
    thread.start()
    try:
        desk.put(TASK_COST, options=HOSTILE)
        batch = desk.queue.take()
        assert isinstance(batch, Batch)
        for _ in range(3):
            desk.put(1, options=HOSTILE)
        own = desk.put(1, options=QUIET)
        wait_for(lambda: bool(found))
        assert [taken(one) for one in found if one] == [[own]]
        desk.queue.finish(batch, seconds=0.01)
        desk.put(1, options=QUIET)  # answered in turn: the tenant has a request under way
        assert len(taken(desk.take())) == 4
    finally:
        desk.queue.close()
        thread.join()
    assert len(found) == 2


def test_a_large_request_is_not_finished_before_another_tenants(desk: QueueDesk) -> None:
    first = desk.put(9 * TASK_COST, options=HOSTILE)
    desk.put(9 * TASK_COST, options=HOSTILE)
    assert taken(desk.take()) == [first]
    own = desk.put(2 * TASK_COST, options=QUIET)
    assert [taken(desk.take()) for _ in range(4)].count([own]) == 2
    assert taken(desk.take()) == [first]


def test_a_tenant_with_a_share_left_is_accepted_during_another_ones_overload(
    desk: QueueDesk,
) -> None:
    desk.overload()
    for _ in range(9):  # until its limit
        with suppress(DelayExceeded, Overloaded):
            desk.put(1, options=HOSTILE)
    with pytest.raises(DelayExceeded):
        desk.put(1, options=HOSTILE)
    own = desk.put(1, options=QUIET)
    assert own in taken(desk.take())


def test_one_tenant_may_fill_the_queue_up_to_the_others_share(desk: QueueDesk) -> None:
    accepted = 0
    with pytest.raises(Overloaded):
        while True:
            desk.put(1, options=HOSTILE)
            accepted += 1
    assert accepted == MOST_WAITING
    for _ in range(MOST_WAITING // 2):
        desk.put(1, options=QUIET)
    with pytest.raises(Overloaded):
        desk.put(1, options=QUIET)


def test_the_old_requests_of_the_tenant_with_the_most_are_dropped(desk: QueueDesk) -> None:
    many = [desk.put(1, options=HOSTILE) for _ in range(30)]
    own = desk.put(1, options=QUIET)
    desk.now += 1.0  # longer than the interval: overload, and all have waited too long
    first = desk.take()  # this one notes the overload
    dropped, answered = list[QueryRequest](), taken(first)
    while desk.queue.depth:
        batch = desk.take()
        dropped += [request for request, _ in batch.dropped]
        answered += taken(batch)
    assert own in answered and dropped and set(dropped) <= set(many)


def test_filters_and_rules_count_by_their_steps() -> None:
    conditions = [{"field": f"f{number}", "eq": 1} for number in range(1_000)]
    wanted = [parse({"any": conditions[:count]}, at="filter", most=1_000) for count in (1, 1_000)]
    costs = [query_cost(PredictOptions(filter=one)) for one in wanted]
    assert costs[1] > costs[0] + TASK_COST / 2
    assert query_cost(PredictOptions(), rules=10_000) > query_cost(PredictOptions()) == 1


def test_a_long_query_costs_more() -> None:
    costs = [query_cost(PredictOptions(), characters=length) for length in (0, 30, 256, 2_048)]
    assert costs == [1, 1, 2, 3]
