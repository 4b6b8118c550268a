"""The writer's queue: bounded by items, by delay, and by the texts of one commit."""

from time import monotonic

import pytest

from service.core.errors import Overloaded
from service.core.types import NewLabel
from service.engine.writing.operations import PutLabels, RemoveLabel
from service.engine.writing.write_queue import COMMIT_TEXTS, WriteJob, WriteQueue


def job(*texts: str, waited: float = 0.0) -> WriteJob:
    labels = tuple(NewLabel(id=text, text=text) for text in texts)
    return WriteJob(
        operation=PutLabels(labels=labels),
        encoded_items=[None] * len(labels),
        encoder_fingerprint="trigrams",
        submitted=monotonic() - waited,
    )


def test_new_jobs_are_refused_while_an_older_one_has_waited_too_long() -> None:
    queue = WriteQueue(100, delay=5.0)
    late = job("late", waited=6.0)
    queue.put(late)
    with pytest.raises(Overloaded, match="wait for too long"):
        queue.put(job("new"))

    assert queue.take()[0] == [late]
    with pytest.raises(Overloaded):  # it is being written, and still not done
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
    queue.put(job("new"))  # beside `kept`, which is not done


def test_a_commit_takes_few_texts_that_must_be_encoded() -> None:
    queue = WriteQueue(100)
    jobs = [job(f"label {number}") for number in range(COMMIT_TEXTS + 3)]
    for one in jobs:
        queue.put(one)
    assert queue.take()[0] == jobs[:COMMIT_TEXTS]
    assert queue.take()[0] == jobs[COMMIT_TEXTS:]


def test_what_a_job_may_have_to_encode() -> None:
    labels = (NewLabel(id="a", text="a", queries=("b", "c")), NewLabel(id="d", text="d"))
    nothing = WriteJob(
        operation=PutLabels(labels=labels), encoded_items=[None, None], encoder_fingerprint=""
    )
    assert nothing.unencoded_texts == 4
    removal = WriteJob(operation=RemoveLabel(id="a"), encoded_items=[], encoder_fingerprint="")
    assert removal.unencoded_texts == 0
