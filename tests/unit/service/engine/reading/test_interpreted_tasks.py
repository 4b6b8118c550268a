"""What keeps the interpreter busy: one thread at a time, query by query, with rests between."""

import threading
from collections.abc import Iterator

import pytest

from service.core.types import PredictOptions
from service.engine.reading.query_request import TASK_COST
from service.engine.reading.task_queue import Batch
from tests.support.queue_desk import QueueDesk, taken

EXPLAINED = PredictOptions(top_k=1_000, depth=2_000, explain=True)
MANY_KEYWORDS = PredictOptions(top_k=1_000)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueDesk]:
    desk = QueueDesk(monkeypatch)
    yield desk
    desk.loop.close()


def begin(desk: QueueDesk) -> Batch:
    """What a thread takes and has not finished."""
    batch = desk.queue.take()
    assert isinstance(batch, Batch)
    return batch


@pytest.mark.parametrize("options", [EXPLAINED, MANY_KEYWORDS])
def test_one_thread_at_a_time_builds_evidence_or_many_keywords(
    options: PredictOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = QueueDesk(monkeypatch, threads=2)
    explained = desk.put(8, options=options)
    first = begin(desk)
    plain = desk.put(1)
    assert taken(first) == [explained]
    assert taken(begin(desk)) == [plain]  # though the explained one's lane was served less

    second: list[Batch] = []
    waiting = threading.Thread(target=lambda: second.append(begin(desk)), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert not second
    desk.queue.finish(first, seconds=0.03)
    waiting.join(0.2)
    assert not second  # a small request came meanwhile, so evidence rests for as long as it took
    desk.now += 0.031
    waiting.join(30)
    assert taken(second[0]) == [explained]
    desk.loop.close()


def test_a_query_for_many_keywords_is_a_task_by_itself(desk: QueueDesk) -> None:
    request = desk.put(8, options=MANY_KEYWORDS)
    batches = [desk.take() for _ in range(8)]
    assert [taken(batch) for batch in batches] == [[request]] * 8
    assert [len(batch) for batch in batches] == [1] * 8


def test_evidence_does_not_rest_where_no_small_request_came(desk: QueueDesk) -> None:
    desk.put(1)
    desk.take()
    explained = desk.put(3, options=EXPLAINED)
    for _ in range(3):
        first = begin(desk)
        assert taken(first) == [explained]
        desk.queue.finish(first, seconds=0.03)


def test_small_requests_with_evidence_do_not_rest(desk: QueueDesk) -> None:
    few = PredictOptions(explain=True)
    first = desk.put(1, options=few)
    batch = begin(desk)
    second = desk.put(1, options=few)
    assert taken(batch) == [first]
    desk.queue.finish(batch, seconds=0.03)
    assert taken(begin(desk)) == [second]


def test_large_requests_without_evidence_use_all_threads(desk: QueueDesk) -> None:
    large = desk.put(3 * TASK_COST)
    assert [taken(begin(desk)) for _ in range(3)] == [[large]] * 3


def test_a_closed_queue_still_answers_evidence_that_waits(desk: QueueDesk) -> None:
    explained = desk.put(2, options=EXPLAINED)
    first = begin(desk)
    desk.queue.close()
    last: list[object] = []
    waiting = threading.Thread(target=lambda: last.append(begin(desk)), daemon=True)
    waiting.start()
    desk.queue.finish(first, seconds=0.03)
    waiting.join(30)
    assert taken(last[0]) == [explained]
    desk.queue.finish(last[0], seconds=0.03)
    assert desk.queue.take() is None
