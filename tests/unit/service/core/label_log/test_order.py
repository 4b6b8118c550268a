"""Events in one order without gaps: appending, reading, and reading after a restart."""

from contextlib import closing

import numpy as np
import pytest

from service.core.changes import DeleteLabel, PutLabel, UseBundle
from service.core.errors import LogError
from service.core.label_log import EVENT_KINDS, LabelLog, NewEvent, rows
from tests.support.label_logs import Place, append, event


def test_events_are_numbered_from_one_without_a_gap(log: LabelLog) -> None:
    assert log.last_sequence() == 0
    first, second = append(log, "a", "b"), append(log, "c")
    assert [logged.sequence for logged in first + second] == [1, 2, 3]
    assert log.last_sequence() == 3
    assert append(log) == []
    assert log.last_sequence() == 3


def test_a_transaction_may_append_several_times_and_reads_its_own_events(log: LabelLog) -> None:
    append(log, "a")
    with log.exclusive() as appending:
        assert appending.last == 1
        appending.append([event("b")], encoder="e")
        appending.append([event("c")], encoder="f")
        assert appending.last == 3
        assert [logged.body["id"] for logged in appending.read(after=1)] == ["b", "c"]
        assert [logged.body["id"] for logged in log.read()] == ["a"]  # nothing is committed yet
    assert [logged.encoder for logged in log.read()] == ["e", "e", "f"]


def test_a_block_that_raises_appends_nothing_and_leaves_no_gap(log: LabelLog) -> None:
    append(log, "a")
    with pytest.raises(ZeroDivisionError), log.exclusive() as appending:
        appending.append([event("b"), event("c")], encoder="e")
        raise ZeroDivisionError
    assert log.last_sequence() == 1
    assert append(log, "b")[0].sequence == 2
    assert [logged.body["id"] for logged in log.read()] == ["a", "b"]


def test_events_that_another_process_appended_are_read_under_the_lock(
    place: Place, log: LabelLog
) -> None:
    append(log, "a")
    with closing(place.open()) as other:
        append(other, "b", "c")
    with log.exclusive() as appending:
        assert appending.last == 3
        assert [logged.body["id"] for logged in appending.read(after=1)] == ["b", "c"]
        assert appending.append([event("d")], encoder="e")[0].sequence == 4


def test_events_come_back_in_order_after_a_restart(three: Place) -> None:
    assert three.ids() == ["a", "b", "c"]
    assert three.ids(after=2) == ["c"]
    assert three.ids(after=3) == []
    with closing(three.open()) as log:
        assert log.last_sequence() == 3
        assert append(log, "d")[0].sequence == 4
    assert three.ids() == ["a", "b", "c", "d"]


def test_reading_ends_at_until_or_at_the_end_of_the_log(three: Place) -> None:
    with closing(three.open()) as log:
        for until, expected in ((0, []), (2, [1, 2]), (3, [1, 2, 3]), (9, [1, 2, 3])):
            assert [logged.sequence for logged in log.read(until=until)] == expected
        assert [logged.sequence for logged in log.read(after=1, until=2)] == [2]


def test_body_vectors_and_encoder_are_read_bit_for_bit(place: Place) -> None:
    written = event("a", rows=3)
    with closing(place.open()) as log, log.exclusive() as appending:
        (appended,) = appending.append([written], encoder="fingerprint")
    assert appended.vectors is written.vectors
    with closing(place.open()) as log:
        (read,) = log.read()
    assert read.body == written.body
    assert (read.kind, read.encoder) == (PutLabel.kind, "fingerprint")
    assert read.vectors is not None and read.vectors.dtype == np.float16
    assert read.vectors.tobytes() == written.vectors.tobytes()  # row by row


def test_an_event_may_have_no_vectors(log: LabelLog) -> None:
    no_vectors = np.empty((0, 0), np.float16)
    with log.exclusive() as appending:
        deletion = NewEvent(kind=DeleteLabel.kind, body={"id": "a"}, vectors=no_vectors)
        appending.append([deletion], encoder="")
    (read,) = log.read()
    assert read.vectors is not None and read.vectors.shape == (0,)
    assert (read.kind, read.body, read.encoder) == (DeleteLabel.kind, {"id": "a"}, "")


def test_the_newest_event_of_a_kind_is_found(log: LabelLog) -> None:
    assert log.newest(UseBundle.kind) is None
    with log.exclusive() as appending:
        for name, kind in (("a", UseBundle.kind), ("b", UseBundle.kind), ("c", PutLabel.kind)):
            appending.append([event(name, kind=kind)], encoder="e")
    newest = log.newest(UseBundle.kind)
    assert newest is not None and (newest.sequence, newest.body["id"]) == (2, "b")


def test_events_of_unknown_kinds_are_refused(log: LabelLog) -> None:
    with log.exclusive() as appending:
        appending.append([event("a", kind=kind) for kind in EVENT_KINDS], encoder="e")
    assert tuple(logged.kind for logged in log.read()) == EVENT_KINDS
    with pytest.raises(LogError, match=r"'label\.eat' is not a kind of event"):
        with log.exclusive() as appending:
            appending.append([event("a", kind="label.eat")], encoder="e")
    assert log.last_sequence() == len(EVENT_KINDS)


@pytest.mark.parametrize("count", [5, 6, 7])
def test_a_log_longer_than_a_page_is_read_whole(
    place: Place, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(rows, "PAGE_EVENTS", 3)
    names = [f"label {number}" for number in range(count)]
    with closing(place.open()) as log:
        append(log, *names)
        with log.exclusive() as appending:
            assert [logged.body["id"] for logged in appending.read(after=1)] == names[1:]
        assert [logged.body["id"] for logged in log.read(until=4)] == names[:4]
    assert place.ids() == names
    assert place.ids(after=4) == names[4:]


def test_appending_while_a_reader_is_between_two_events(three: Place) -> None:
    with closing(three.open()) as log:
        events = log.read()
        assert next(events).body["id"] == "a"
        append(log, "d")
        assert [logged.body["id"] for logged in events][:2] == ["b", "c"]
