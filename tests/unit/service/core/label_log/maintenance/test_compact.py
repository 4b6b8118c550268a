"""The beginning of a log is cut if a snapshot holds it; nothing else is cut."""

from contextlib import closing
from pathlib import Path

import pytest

from service.core.changes import DeleteItem, PutItem, PutLabel, UseBundle
from service.core.errors import LogCut, LogReplaced
from service.core.label_log import LabelLog, open_log
from service.core.label_log.maintenance import compact
from service.core.label_log.maintenance.check import verify
from service.core.label_log.maintenance.compact import compact as cut_events
from service.core.label_log.maintenance.compact import lost_items
from service.core.label_log.maintenance.recover import recover
from service.core.label_log.rows import Link
from tests.support.label_logs import Follower, Place, append, event

NAMES = [f"label {number}" for number in range(40)]


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete few events per transaction, so cuts need several."""
    monkeypatch.setattr(compact, "CUT_AT_ONCE", 7)


@pytest.fixture
def filled(log: LabelLog) -> LabelLog:
    """A log of forty events."""
    append(log, *NAMES)
    return log


def test_what_comes_after_the_cut_is_read_and_appended_to(filled: LabelLog, place: Place) -> None:
    assert cut_events(filled, filled.link_at(30)) == 30

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
        assert cut_events(filled, filled.link_at(40)) == 39
        with pytest.raises(LogCut):
            list(behind.read(after=3))
        with pytest.raises(LogCut):
            append(behind, "x")
    assert filled.last_sequence() == 40


def test_events_from_the_last_reload_on_are_kept(filled: LabelLog) -> None:
    with filled.exclusive() as appending:
        change = UseBundle(sequence=41, bundle="b", configured="a")
        appending.append([change, event("later")], encoder="e")
    assert cut_events(filled, filled.link_at(42)) == 40
    newest = filled.newest(UseBundle.kind)
    assert newest is not None and newest.sequence == 41


def test_a_second_cut_goes_on(filled: LabelLog) -> None:
    cut_events(filled, filled.link_at(10))
    assert cut_events(filled, filled.link_at(20)) == 20
    assert cut_events(filled, filled.link_at(20)) == 20
    with pytest.raises(LogCut):
        cut_events(filled, Link(sequence=5, chain=bytes(16)))
    assert filled.cut() == 20


def test_nothing_is_cut_for_a_snapshot_of_another_history(filled: LabelLog) -> None:
    for wrong in (Link(sequence=30, chain=bytes(16)), Link(sequence=41, chain=bytes(16))):
        with pytest.raises(LogReplaced, match="the snapshot holds"):
            cut_events(filled, wrong)
    assert filled.cut() == 0


def test_others_read_and_write_on(filled: LabelLog, place: Place) -> None:
    with closing(place.open()) as other:
        follower = Follower(other)
        assert follower.reaches(40)
        cut_events(filled, filled.link_at(30))
        append(filled, "later")
        assert follower.reaches(41)
        append(other, "latest")
    with closing(place.open()) as log:
        assert [read.body["id"] for read in log.read(after=40)] == ["later", "latest"]


def test_the_file_gets_shorter_and_stays_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "labels.sqlite"
    with closing(open_log(tmp_path)) as log:
        append(log, *(f"label {number}" for number in range(1000)))
        log.shrink()
        before = file.stat()
        cut_events(log, log.link_at(950))
        assert file.stat().st_size < before.st_size / 4
        assert file.stat().st_ino == before.st_ino
        append(log, "later")


def test_what_is_whole_of_a_cut_log_is_saved(
    filled: LabelLog, place: Place, tmp_path: Path
) -> None:
    cut_events(filled, filled.link_at(30))
    place.tamper("UPDATE events SET body = :body WHERE sequence = 35", body=b"{}")
    with closing(open_log(tmp_path / "new")) as target:
        found = recover(filled, target)
        assert str(found) == "whole are the events 31-34, 36-40; lost are 35"
        assert found.cut == 30  # only the snapshot holds these events
        assert [read.body["id"] for read in target.read()] == NAMES[30:34] + NAMES[35:]


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
    place.tamper("UPDATE events SET body = :body WHERE sequence = 3", body=b"{}")
    assert lost_items(log, until=5).put == {"cut", "kept"}
    cut_events(log, log.link_at(2))
    assert lost_items(log, until=5).put == {"kept"}
