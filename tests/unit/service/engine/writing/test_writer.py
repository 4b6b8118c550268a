"""The single writer: group commit, every future answered, nothing written twice or in part."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.changes import PutLabel
from service.core.encoding.representer import EncodedItem, Representer
from service.core.errors import (
    KeyReused,
    LogError,
    MemoryFull,
    NotReady,
    Overloaded,
    UnknownLabel,
    UnknownLabels,
)
from service.core.label_log import open_log
from service.core.memory.label_table import LabelTable
from service.core.replay import new_event, texts_of
from service.core.types import NewInstance, NewLabel
from service.engine.writing.operations import NAMED_LABELS, PutInstances, PutLabels, RemoveLabel
from service.engine.writing.write_queue import RequestKey, WriteJob
from service.engine.writing.written import Written
from tests.support.serving import wait_for
from tests.support.writer_desk import AXE, Desk, statuses


def test_a_written_label_is_logged_and_visible(desk: Desk) -> None:
    written = desk.submit([AXE]).result(60)
    assert (written.version, statuses(written)) == (1, [("axe", "created")])
    assert desk.memory.view.version == desk.log.last_sequence() == 1
    assert desk.memory.view.labels.require("axe").text == "ice axe"
    assert (desk.writer.lag, desk.published) == (0, 1)


def test_rows_of_another_encoder_are_made_again(desk: Desk) -> None:
    """A reload may come between encoding and writing."""
    encoder = desk.loaded.encoder
    [right] = Representer(encoder).encode([texts_of(AXE)])
    wrong = EncodedItem(rows=np.full((1, encoder.dimension), 0.25, np.float16))
    for fingerprint, stored in (("another", right), (encoder.fingerprint, wrong)):
        operation = PutLabels(labels=(replace(AXE, id=fingerprint),))
        job = WriteJob(operation=operation, encoded_items=[wrong], encoder_fingerprint=fingerprint)
        desk.writer.submit(job).result(60)
        row = desk.memory.view.next_row - 1
        assert np.array_equal(desk.memory.view.vectors(np.array([row])), stored.rows)


def test_what_changes_nothing_is_not_logged(desk: Desk) -> None:
    desk.submit([AXE]).result(60)
    again = desk.submit([AXE]).result(60)
    assert (again.version, statuses(again)) == (1, [("axe", "unchanged")])
    assert desk.log.last_sequence() == 1
    assert desk.published == 1


def test_jobs_that_wait_share_a_commit_and_see_one_another(desk: Desk) -> None:
    desk.hold()
    other = NewLabel(id="axe", text="ice tool")
    jobs = [desk.submit([label]) for label in (AXE, AXE, other, AXE)]
    desk.go_on.set()
    written = [job.result(60) for job in jobs]
    found = [statuses(one)[0][1] for one in written]
    assert found == [
        "created",
        "unchanged",
        "updated",
        "updated",
    ]
    assert [one.version for one in written] == [2, 2, 3, 4]
    assert desk.commits == 2
    assert desk.memory.view.labels.require("axe").text == "ice axe"


def test_a_failing_commit_fails_all_its_jobs_and_no_later_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_how: object) -> None:
        raise LogError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(desk.log, "exclusive", full)
        with pytest.raises(LogError):
            desk.submit([AXE]).result(60)
    assert desk.memory.view.version == 0
    assert desk.writer.alive
    assert desk.submit([AXE]).result(60).version == 1


def test_a_job_without_room_fails_alone(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(live_rows=3)
    desk.hold()
    large = NewLabel(id="large", text="large", queries=("a", "b", "c"))
    small = [desk.submit([NewLabel(id=name, text=name)]) for name in ("x", "y")]
    too_large = desk.submit([large])
    desk.go_on.set()
    assert [job.result(60).version for job in small] == [2, 3]
    with pytest.raises(MemoryFull):
        too_large.result(60)
    assert desk.memory.view.labels.get("large") is None
    assert desk.log.last_sequence() == 3


def test_too_many_waiting_labels_are_refused_until_they_are_written(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(waiting=2)
    desk.hold()
    second = desk.submit([AXE])
    with pytest.raises(Overloaded):
        desk.submit([NewLabel(id="third", text="third")])
    desk.go_on.set()
    second.result(60)
    many = [NewLabel(id=str(number), text="text") for number in range(5)]
    assert desk.submit(many).result(60).version == 7  # larger than the queue, but alone


def test_who_has_an_answer_may_write_again_at_once(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(waiting=1)
    again: list[Future[Written]] = []
    desk.hold()
    # Called by the thread that sets the result, before it does anything else.
    desk.first.add_done_callback(lambda _: again.append(desk.submit([AXE])))
    desk.go_on.set()
    desk.first.result(60)
    wait_for(lambda: again)
    assert again[0].result(60).version == 2


def test_closing_writes_what_was_admitted_and_takes_no_more(desk: Desk) -> None:
    desk.hold()
    jobs = [desk.submit([NewLabel(id=str(number), text="text")]) for number in range(9)]
    closing = threading.Thread(target=desk.writer.close)
    closing.start()
    wait_for(lambda: not desk.writer.alive)
    with pytest.raises(NotReady):
        desk.submit([AXE])
    desk.go_on.set()
    closing.join()
    assert [job.result(0).version for job in jobs] == list(range(2, 11))
    assert desk.first.result(0).version == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dying_thread_answers_everybody(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.hold()

    def die(*_args: object) -> None:
        raise SystemExit

    monkeypatch.setattr(desk.memory, "draft", die)
    waiting = [desk.submit([NewLabel(id=str(number), text="text")]) for number in range(3)]
    desk.go_on.set()
    for job in (desk.first, *waiting):
        with pytest.raises(NotReady):
            job.result(60)
    assert not desk.writer.alive
    with pytest.raises(NotReady):
        desk.submit([AXE])


def test_a_repeated_request_gets_its_first_answer_and_changes_nothing(desk: Desk) -> None:
    key = RequestKey(key="k", digest="one")
    first = desk.submit([AXE], key).result(60)
    desk.submit([NewLabel(id="axe", text="ice tool")]).result(60)
    assert desk.submit([AXE], key).result(60) == first
    assert desk.memory.view.labels.require("axe").text == "ice tool"
    with pytest.raises(KeyReused):
        desk.submit([AXE], RequestKey(key="k", digest="two")).result(60)
    assert desk.log.last_sequence() == 2


def test_a_request_that_changes_nothing_is_remembered_too(desk: Desk) -> None:
    desk.submit([AXE]).result(60)
    key = RequestKey(key="k", digest="one")
    assert statuses(desk.submit([AXE], key).result(60)) == [("axe", "unchanged")]
    desk.do(RemoveLabel(id="axe")).result(60)
    assert statuses(desk.submit([AXE], key).result(60)) == [("axe", "unchanged")]
    assert desk.memory.view.labels.get("axe") is None


def test_two_jobs_of_one_commit_with_one_key_are_one_request(desk: Desk) -> None:
    desk.hold()
    key = RequestKey(key="k", digest="one")
    twice = [desk.submit([AXE], key) for _ in range(2)]
    desk.go_on.set()
    assert [statuses(job.result(60)) for job in twice] == [[("axe", "created")]] * 2
    assert desk.log.last_sequence() == 2


def test_a_refused_operation_fails_alone_and_leaves_nothing(desk: Desk) -> None:
    desk.hold()
    known = NewInstance(query="ice", labels=("first",))
    unknown = NewInstance(query="snow", labels=("first", "nowhere"))
    jobs = [
        desk.do(PutInstances(instances=(known, unknown))),
        desk.do(PutInstances(instances=(known,))),
        desk.do(RemoveLabel(id="nowhere")),
    ]
    desk.go_on.set()
    with pytest.raises(UnknownLabels) as refused:
        jobs[0].result(60)
    assert [field for field, _ in refused.value.fields] == ["instances.1.labels.1"]
    assert (jobs[1].result(60).version, jobs[1].result(60).accepted) == (2, 1)
    with pytest.raises(UnknownLabel):
        jobs[2].result(60)
    assert desk.do(PutInstances(instances=(known,))).result(60).version == 2  # nothing new


def test_no_more_unknown_labels_are_looked_for_than_are_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    column = LabelTable.column
    monkeypatch.setattr(
        LabelTable, "column", lambda self, name: looked_up.append(name) or column(self, name)
    )
    labels = tuple(f"unknown{number}" for number in range(1_000))
    refused = desk.do(PutInstances(instances=(NewInstance(query="snow", labels=labels),)))
    with pytest.raises(UnknownLabels) as error:
        refused.result(60)
    assert len(looked_up) == len(error.value.fields) == NAMED_LABELS


def test_what_another_process_wrote_is_applied_before_and_when_woken(desk: Desk) -> None:
    other = open_log(Path(desk.log.place).parent)
    try:
        for number, name in enumerate(("a", "b")):
            with other.exclusive() as appending:
                label = NewLabel(id=name, text=name)
                [encoded] = desk.loaded.representer.encode([texts_of(label)])
                fingerprint = desk.loaded.representer.fingerprint
                change = PutLabel(sequence=0, label=label, vectors=encoded.rows)
                appending.append([new_event(change)], encoder=fingerprint)
            if number == 0:
                assert desk.submit([AXE]).result(60).version == 2
            else:
                desk.writer.wake()
                wait_for(lambda: desk.memory.view.version == 3)
    finally:
        other.close()
    assert [desk.memory.view.labels.require(name).version for name in ("a", "axe", "b")] == [
        1,
        2,
        3,
    ]
