"""The estimated cost of queries, and what the queue does with costly ones."""

from collections.abc import Iterator
from typing import Any

import pytest

from service.core.errors import ClientLeft
from service.core.types import PredictOptions
from service.engine.reading.query_cost import query_cost
from service.engine.reading.query_request import TASK_COST
from tests.support.queue_desk import Client, QueueDesk, errors, taken

COSTLY = PredictOptions(depth=2_000, top_k=1_000, explain=True)


@pytest.mark.parametrize("options", [{}, {"depth": 1, "top_k": 1}, {"depth": 300}, {"top_k": 100}])
def test_a_plain_query_costs_one(options: dict[str, int]) -> None:
    assert query_cost(PredictOptions(**options)) == 1


@pytest.mark.parametrize(
    "more", [{"depth": 2_000}, {"top_k": 1_000}, {"explain": True}, {"items": ("tent",) * 200}]
)
def test_more_of_anything_costs_more(more: dict[str, Any]) -> None:
    few = {"depth": 1_000, "top_k": 500}
    assert query_cost(PredictOptions(**{**few, **more})) > query_cost(PredictOptions(**few))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueDesk]:
    desk = QueueDesk(monkeypatch)
    yield desk
    desk.loop.close()


def test_a_costly_query_counts_as_several_and_is_a_task_by_itself(desk: QueueDesk) -> None:
    costly, cost = desk.put(3, options=COSTLY), query_cost(COSTLY)
    assert cost > TASK_COST
    assert desk.queue.depth == 3 * cost
    batches = [desk.take() for _ in range(3)]
    assert [[list(task.queries) for task in batch.tasks] for batch in batches] == [
        [["q0"]],
        [["q1"]],
        [["q2"]],
    ]
    assert taken(batches[0]) == [costly]
    assert desk.queue.depth == 0


def test_a_few_costly_queries_take_turns_with_many_plain_ones(desk: QueueDesk) -> None:
    costly = desk.put(8, options=COSTLY)
    for _ in range(16 * TASK_COST):
        desk.put(1)
    cost = {True: 0, False: 0}
    for _ in range(12):
        batch = desk.take()
        cost[taken(batch)[0] is costly] += batch.cost
    assert abs(cost[True] - cost[False]) <= query_cost(COSTLY)


def test_what_is_left_of_a_costly_request_is_dropped_when_its_client_leaves(
    desk: QueueDesk,
) -> None:
    client = Client()
    costly = desk.put(16, options=COSTLY, client=client)
    assert taken(desk.take()) == [costly]
    client.left = True
    batch = desk.take()
    assert not batch.tasks and errors(batch) == [ClientLeft]
    assert desk.queue.depth == 0
