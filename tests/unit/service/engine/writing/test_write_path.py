"""The writer's budget of CPU time is kept over any period; its queue takes and refuses jobs."""

from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.changes import DeleteLabel
from service.core.errors import Overloaded
from service.core.types import NewLabel
from service.engine.writing.operations import DeleteOne, PostLabels, WriteJob
from service.engine.writing.write_path import (
    BURST_SECONDS,
    COMMIT_TEXTS,
    ProcessorShare,
    WriteQueue,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


# Pairs: a pause, and the CPU seconds of the work that begins after it if the bucket is not empty.
WORK = st.lists(st.tuples(st.floats(0, 2), st.floats(0.001, 0.1)), max_size=200)


@given(share=st.floats(0.01, 0.5), cores=st.integers(1, 64), work=WORK)
def test_work_takes_its_share_and_one_burst_at_most(share, cores, work) -> None:
    clock, start = Clock(), 100.0
    bucket, taken = ProcessorShare(share, cores=cores, clock=clock), 0.0
    longest = max((seconds for _, seconds in work), default=0.0)
    for pause, seconds in work:
        clock.now += pause
        if bucket.left:
            bucket.spend(seconds)
            taken += seconds
        allowed = share * cores * (BURST_SECONDS + clock.now - start)
        assert taken <= allowed + longest + 1e-9


def test_work_goes_on_after_a_pause() -> None:
    clock = Clock()
    bucket = ProcessorShare(0.25, cores=2, clock=clock)  # half a CPU second per second
    assert bucket.left
    bucket.spend(1.0)  # the bucket held 0.5
    assert not bucket.left
    clock.now += 0.9
    assert not bucket.left
    clock.now += 0.2
    assert bucket.left


def job(*texts: str, waited: float = 0.0) -> WriteJob:
    labels = tuple(NewLabel(id=text, text=text) for text in texts)
    return WriteJob(operation=PostLabels(items=labels), submitted=monotonic() - waited)


def test_new_jobs_are_refused_while_an_older_one_has_waited_too_long() -> None:
    queue = WriteQueue(100, delay=5.0)
    late = job("late", waited=6.0)
    queue.put(late)
    with pytest.raises(Overloaded, match="wait for too long"):
        queue.put(job("new"))
    assert queue.take()[0] == [late]
    with pytest.raises(Overloaded):  # `late` is being written, not done
        queue.put(job("new"))
    queue.done([late])
    queue.put(job("new"))


def test_a_cancelled_job_is_not_taken_and_makes_room() -> None:
    queue = WriteQueue(2)
    cancelled, kept = job("cancelled"), job("kept")
    queue.put(cancelled)
    queue.put(kept)
    assert cancelled.future.cancel()
    assert queue.take()[0] == [kept]
    queue.put(job("new"))  # fits next to `kept`, which is not done


def test_a_commit_takes_few_texts_that_must_be_encoded() -> None:
    queue = WriteQueue(100)
    jobs = [job(f"label {number}") for number in range(COMMIT_TEXTS + 3)]
    for one in jobs:
        queue.put(one)
    assert queue.take()[0] == jobs[:COMMIT_TEXTS]
    assert queue.take()[0] == jobs[COMMIT_TEXTS:]
    labels = (NewLabel(id="a", text="a", queries=("b", "c")), NewLabel(id="d", text="d"))
    assert WriteJob(operation=PostLabels(items=labels)).unencoded_texts == 4
    assert WriteJob(operation=DeleteOne(change=DeleteLabel, id="a")).unencoded_texts == 0
