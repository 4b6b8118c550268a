"""The queue loses nothing, counts queries, shares them out fairly, and drops what is of no use."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.errors import ClientLeft, DeadlineExceeded, DelayExceeded, Overloaded
from service.engine.reading import task_queue
from service.engine.reading.query_request import TASK_COST, QueryRequest
from service.engine.reading.task_queue import BATCH_COST, GPU_COST
from tests.support.queue_desk import Client, QueueDesk, errors, taken


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueDesk]:
    desk = QueueDesk(monkeypatch)
    yield desk
    desk.loop.close()


def test_first_in_first_out_in_batches_of_what_waits(desk: QueueDesk) -> None:
    requests = [desk.put(1) for _ in range(BATCH_COST + 3)]
    assert taken(desk.take()) == requests[:BATCH_COST]
    assert taken(desk.take()) == requests[BATCH_COST:]


def test_what_waits_is_shared_among_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = QueueDesk(monkeypatch, threads=4)
    for _ in range(8):
        desk.put(1)
    assert len(desk.take()) == 2
    desk.loop.close()


def test_with_a_gpu_one_thread_takes_all_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads there are: the GPU computes for one of them at a time."""
    desk = QueueDesk(monkeypatch, device="cuda", threads=4)
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
    desk.loop.close()


def test_a_large_request_is_cut_into_tasks_of_one_view_and_finished_first(desk: QueueDesk) -> None:
    first, second = desk.put(3 * TASK_COST), desk.put(2 * TASK_COST)
    batches = [desk.take() for _ in range(5)]
    assert [taken(batch) for batch in batches] == [[first]] * 3 + [[second]] * 2
    texts = [text for batch in batches[:3] for text in batch.tasks[0].queries]
    assert texts == list(first.queries)


def test_small_and_large_requests_take_turns_by_queries(desk: QueueDesk) -> None:
    large = desk.put(30 * TASK_COST)
    small = [desk.put(1) for _ in range(4 * BATCH_COST)]
    queries = {True: 0, False: 0}
    for _ in range(8):
        batch = desk.take()
        queries[taken(batch)[0] is large] += len(batch)
    assert queries == {True: 4 * TASK_COST, False: len(small)}


def test_a_lane_that_was_idle_has_saved_nothing_up(desk: QueueDesk) -> None:
    for _ in range(20):
        desk.put(1)
        desk.take()
    large = desk.put(10 * TASK_COST)
    for _ in range(3 * BATCH_COST):
        desk.put(1)
    turns = [taken(desk.take())[0] is large for _ in range(6)]
    assert sum(turns) == 3


def test_expired_requests_and_those_whose_clients_left_are_dropped(desk: QueueDesk) -> None:
    client = Client()
    desk.put(1, deadline=0.05)
    desk.put(2 * TASK_COST, client=client)
    kept = desk.put(1)
    client.left = True
    desk.now += 0.06
    first, second = desk.take(), desk.take()
    assert taken(first) == [kept] and errors(first) == [DeadlineExceeded]
    assert not second.tasks and errors(second) == [ClientLeft]
    assert desk.queue.depth == 0


def test_a_request_that_is_withdrawn_takes_no_place_any_more(desk: QueueDesk) -> None:
    withdrawn, kept = desk.put(3), desk.put(1)
    desk.queue.withdraw(withdrawn, ClientLeft("left"))
    assert desk.queue.depth == 1
    assert isinstance(withdrawn.future.exception(), ClientLeft)
    assert taken(desk.take()) == [kept]
    assert desk.queue.depth == 0


def test_a_request_that_a_thread_has_begun_is_withdrawn_when_a_thread_sees_it(
    desk: QueueDesk,
) -> None:
    begun = desk.put(2 * TASK_COST)
    assert taken(desk.take()) == [begun]
    desk.queue.withdraw(begun, ClientLeft("left"))
    assert desk.queue.depth == TASK_COST
    assert errors(desk.take()) == [DeadlineExceeded]
    assert desk.queue.depth == 0


def test_in_overload_the_old_are_dropped_and_the_newest_come_first(desk: QueueDesk) -> None:
    desk.overload()
    old = [desk.request(1) for _ in range(3)]
    desk.now += 0.025
    new = [desk.request(1) for _ in range(2 * BATCH_COST)]
    lane = desk.queue.lane(1)
    for request in (*old, *new):  # they came in before anybody knew of the overload
        lane.put(request)
    batch = desk.take()
    assert [request for request, _ in batch.dropped] == old
    assert set(errors(batch)) == {DelayExceeded}
    assert taken(batch) == new[: -BATCH_COST - 1 : -1]


def test_the_few_that_can_be_answered_in_time_are_not_dropped_for_a_stall(desk: QueueDesk) -> None:
    desk.overload()
    few = [desk.put(1) for _ in range(desk.queue.lane(1).control.limit)]
    desk.now += 1.0  # the machine was busy with something else
    batch = desk.take()
    assert errors(batch) == []
    assert taken(batch) == few[: len(taken(batch))]


def test_in_overload_no_more_may_wait_than_is_answered_in_time(desk: QueueDesk) -> None:
    desk.overload()
    accepted = 0
    with pytest.raises(DelayExceeded):
        for _ in range(100):
            desk.put(1)
            accepted += 1
    assert accepted == desk.queue.lane(1).control.limit
    desk.put(2 * TASK_COST)  # the other lane is not overloaded


def test_each_lane_has_a_limit_in_plain_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = QueueDesk(monkeypatch, queue_queries=10)
    desk.put(64)  # more than the lane may hold, and alone in it
    with pytest.raises(Overloaded, match="too many queries"):
        desk.put(TASK_COST + 1)
    for _ in range(10):
        desk.put(1)
    with pytest.raises(Overloaded, match="too many queries"):
        desk.put(1)
    desk.loop.close()


def test_a_closed_queue_gives_out_what_waits_and_then_nothing(desk: QueueDesk) -> None:
    request = desk.put(1)
    desk.queue.close()
    assert taken(desk.take()) == [request]
    assert desk.queue.take() is None


def test_a_waiting_thread_runs_errands(desk: QueueDesk) -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(desk.queue.take()))
    thread.start()
    desk.queue.send(lambda: None)
    thread.join(10)
    assert isinstance(found[0], task_queue.Errand)


sizes = st.integers(1, 3 * TASK_COST)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), sizes),
        st.tuples(st.just("leave"), sizes),
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
