"""A log is verified and counted, its beginning is cut, and its undamaged events are recovered."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.core.changes import DeleteItem, DeleteLabel, PutItem, PutLabel, UseBundle
from service.core.errors import LogCorrupt, LogCut, LogReplaced
from service.core.label_log import LabelLog, maintenance, open_log
from service.core.label_log.maintenance import (
    LogReport,
    compact,
    explained,
    lost_items,
    recover,
    stored_events,
    survey,
    verify,
)
from service.core.label_log.rows import Link
from tests.support.label_logs import Follower, Place, append, event, ids

NAMES = [f"label {number}" for number in range(40)]


@pytest.fixture
def filled(log: LabelLog, monkeypatch: pytest.MonkeyPatch) -> LabelLog:
    """A log of forty events. Few events are deleted per transaction, so cuts need several."""
    monkeypatch.setattr(maintenance, "CUT_AT_ONCE", 7)
    append(log, *NAMES)
    return log


def test_a_report_counts_events_by_kind_and_encoder(log: LabelLog, place: Place) -> None:
    assert verify(log) == LogReport(
        events=0, first=0, last=0, kinds={}, encoders={}, size=0, newest=None
    )
    before = datetime.now(UTC)
    append(log, "a", "b", encoder="first")
    append(log, "c", encoder="second", kind=DeleteLabel.kind)
    report = verify(log)
    assert (report.events, report.first, report.last) == (3, 1, 3)
    assert report.kinds == {PutLabel.kind: 2, DeleteLabel.kind: 1}
    assert report.encoders == {"first": 2, "second": 1}
    assert [(report.size,)] == place.tamper(
        "SELECT SUM(LENGTH(body) + LENGTH(vectors)) FROM events"
    )
    assert report.newest is not None and before <= report.newest <= datetime.now(UTC)


def test_only_events_after_a_number_are_verified(three: Place) -> None:
    three.alter(1, encoder="x")
    with closing(three.open()) as log:
        report = verify(log, after=1)
        assert (report.events, report.first, report.last) == (2, 2, 3)
        assert verify(log, after=3).events == 0
        with pytest.raises(LogCorrupt, match="event 1 "):
            verify(log)


@pytest.mark.parametrize("time", [float("inf"), 1e300])
def test_an_event_without_a_valid_time_is_corrupt(three: Place, time: float) -> None:
    three.alter(2, written=time)
    with closing(three.open()) as log, pytest.raises(LogCorrupt, match="event 2 has no valid time"):
        verify(log)


def test_what_comes_after_the_cut_is_read_and_appended_to(filled: LabelLog, place: Place) -> None:
    assert compact(filled, filled.link_at(30)) == 30

    assert (filled.cut(), filled.last_sequence()) == (30, 40)
    assert place.ids(after=30) == NAMES[30:]
    assert place.tamper("SELECT min(sequence), count(*) FROM events") == [(31, 10)]
    for after in (0, 29):
        needed = f"begins after event 30, and the events after {after} are"
        with pytest.raises(LogCut, match=needed):
            place.ids(after=after)
    append(filled, "later")
    with closing(place.open()) as log:
        assert [read.sequence for read in log.read(after=39)] == [40, 41]
        assert verify(log, after=log.cut()).events == 11


def test_the_newest_event_is_kept(filled: LabelLog, place: Place) -> None:
    """A process that is behind then gets an error instead of seeing no new events."""
    with closing(place.open()) as behind:
        assert len(list(behind.read(until=3))) == 3
        assert compact(filled, filled.link_at(40)) == 39
        with pytest.raises(LogCut):
            list(behind.read(after=3))
        with pytest.raises(LogCut):
            append(behind, "x")
    assert filled.last_sequence() == 40


def test_events_from_the_last_reload_on_are_kept(filled: LabelLog) -> None:
    with filled.exclusive() as appending:
        change = UseBundle(sequence=41, bundle="b", configured="a")
        appending.append([change, event("later")], encoder="e")
    assert compact(filled, filled.link_at(42)) == 40
    newest = filled.newest(UseBundle.kind)
    assert newest is not None and newest.sequence == 41


def test_a_second_cut_goes_on(filled: LabelLog) -> None:
    compact(filled, filled.link_at(10))
    assert compact(filled, filled.link_at(20)) == 20
    assert compact(filled, filled.link_at(20)) == 20
    with pytest.raises(LogCut):
        compact(filled, Link(sequence=5, chain=bytes(16)))
    assert filled.cut() == 20


def test_nothing_is_cut_for_a_snapshot_of_another_history(filled: LabelLog) -> None:
    for wrong in (Link(sequence=30, chain=bytes(16)), Link(sequence=41, chain=bytes(16))):
        with pytest.raises(LogReplaced, match="the snapshot holds"):
            compact(filled, wrong)
    assert filled.cut() == 0


def test_others_read_and_write_on(filled: LabelLog, place: Place) -> None:
    with closing(place.open()) as other:
        follower = Follower(other)
        assert follower.reaches(40)
        compact(filled, filled.link_at(30))
        append(filled, "later")
        assert follower.reaches(41)
        append(other, "latest")
    with closing(place.open()) as log:
        assert ids(log, after=40) == ["later", "latest"]


def test_the_file_gets_shorter_and_stays_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "labels.sqlite"
    with closing(open_log(tmp_path)) as log:
        append(log, *(f"label {number}" for number in range(1000)))
        log.shrink()
        before = file.stat()
        compact(log, log.link_at(950))
        assert file.stat().st_size < before.st_size / 4
        assert file.stat().st_ino == before.st_ino
        append(log, "later")


def write(log: LabelLog, *events: tuple[str, str]) -> None:
    """Append events, each given as (kind, id)."""
    with log.exclusive() as appending:
        appending.append([event(name, kind=kind) for kind, name in events], encoder="e")


def test_the_newest_write_of_an_item_counts(log: LabelLog) -> None:
    write(
        log,
        (PutItem.kind, "twice"),  # event 1
        (PutItem.kind, "twice"),
        (PutItem.kind, "gone"),
        (DeleteItem.kind, "gone"),  # event 4
        (PutLabel.kind, "label"),
        (PutItem.kind, "later"),  # event 6
        (PutItem.kind, "later"),
    )
    lost = lost_items(log, until=6)
    assert (lost.put, lost.deleted) == ({"twice"}, {"gone"})
    assert str(lost) == "1 item that was put and 1 deletion of an item"
    assert lost_items(log, until=7).put == {"twice", "later"}
    assert str(lost_items(log, until=2)) == "1 item that was put"


def test_only_items_that_were_not_cut_before_are_lost(log: LabelLog, place: Place) -> None:
    """Damage in an event of a label, here event 3, does not matter."""
    label = (PutLabel.kind, "label")
    write(log, label, (PutItem.kind, "cut"), label, (PutItem.kind, "kept"), label)
    assert not lost_items(log, until=1)
    place.alter(3, body=b"{}")
    assert lost_items(log, until=5).put == {"cut", "kept"}
    compact(log, log.link_at(2))
    assert lost_items(log, until=5).put == {"kept"}


def contents(place: Place) -> dict[str, object]:
    """Map each event's label id to its text, vectors and time of writing."""
    with closing(place.open(create=False)) as log:
        return {
            stored.event.body["id"]: (
                stored.event.body["text"], bytes(stored.event.vectors), stored.written
            )
            for stored in stored_events(log)
        }  # fmt: skip


def test_altered_and_missing_events_are_named_and_the_others_saved(
    filled: LabelLog, place: Place, tmp_path: Path
) -> None:
    before = contents(place)
    compact(filled, filled.link_at(30))
    place.alter(32, encoder="x")
    place.tamper("DELETE FROM events WHERE sequence IN (34, 35)")
    new = Place(tmp_path / "new")

    with closing(place.open(create=False)) as damaged, closing(new.open()) as target:
        found = recover(damaged, target)

    assert str(found) == "whole are the events 31, 33, 36-40; lost are 32, 34-35"
    assert found.cut == 30  # only the snapshot holds these events
    saved = [NAMES[30], NAMES[32], *NAMES[35:]]
    assert new.ids() == saved
    assert contents(new) == {name: before[name] for name in saved}
    with closing(new.open()) as log:
        assert log.id != filled.id
        assert [event.sequence for event in append(log, "g")] == [8]


@pytest.mark.parametrize("part", [0.4, 0.97])  # of the file: in the middle, or the newest event
def test_a_damaged_page_hides_only_its_own_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    monkeypatch.setattr(maintenance, "UNREADABLE_AT_END", 300)
    old, new = Place(tmp_path / "old"), Place(tmp_path / "new")
    names = [f"label {number}" for number in range(400)]
    with closing(old.open()) as log:
        append(log, *names)
    file = tmp_path / "old" / "labels.sqlite"
    content = bytearray(file.read_bytes())
    start = int(len(content) * part) // 4096 * 4096
    content[start : start + 4096] = b"\xff" * 4096
    file.write_bytes(content)

    with closing(old.open(create=False)) as damaged, closing(new.open()) as target:
        found = recover(damaged, target)
        assert survey(damaged) == found

    saved = new.ids()
    whole = [n for first, last in found.whole for n in range(first, last + 1)]
    assert saved == [names[number - 1] for number in whole]
    assert len(saved) > 300


def test_an_error_of_a_damaged_log_says_what_to_do(three: Place, tmp_path: Path) -> None:
    new = Place(tmp_path / "new")
    with closing(three.open(create=False)) as log, closing(new.open()) as target:
        assert recover(log, target).lost == []
    assert new.ids() == ["a", "b", "c"]
    three.tamper("DELETE FROM events WHERE sequence = 2")
    with closing(three.open(create=False)) as log:
        with pytest.raises(Exception, match="event 2 is missing") as caught:
            list(log.read())
        said = str(explained(log, caught.value))
    assert "event 2 is missing; whole are the events 1, 3; lost are 2. " in said
    assert "log --recover NEW" in said
