"""Events that were altered, lost or moved are detected, and the error names them."""

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.core.errors import LogCorrupt, LogError, LogReplaced
from service.core.label_log import LabelLog, rows
from tests.support.label_logs import Place, append, event


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_event_is_named(three: Place, missing: int) -> None:
    three.tamper("DELETE FROM events WHERE sequence = :missing", missing=missing)
    with pytest.raises(LogCorrupt, match=f"event {missing} is missing"):
        three.ids()


def test_events_before_the_damage_are_still_read(three: Place) -> None:
    three.tamper("DELETE FROM events WHERE sequence = 2")
    with closing(three.open()) as log:
        events = log.read()
        assert next(events).body["id"] == "a"
        with pytest.raises(LogCorrupt):
            next(events)


def test_a_gap_between_two_pages_is_detected(three: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PAGE_EVENTS", 1)
    three.tamper("DELETE FROM events WHERE sequence = 2")
    with pytest.raises(LogCorrupt, match="event 2 is missing"):
        three.ids()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", b'{"id": "mine"}'),
        ("body", b""),
        ("vectors", bytes(8)),
        ("vectors", b""),
        ("encoder", "another"),
        ("kind", "label.delete"),
        ("kind", "label.eat"),
        ("checksum", 0),
    ],
)
def test_an_altered_event_is_named(three: Place, column: str, value: object) -> None:
    three.tamper(f"UPDATE events SET {column} = :value WHERE sequence = 2", value=value)
    with pytest.raises(LogCorrupt, match="event 2 was altered"):
        three.ids()
    with closing(three.open()) as log, log.exclusive() as appending:
        with pytest.raises(LogCorrupt, match="event 2 "):
            list(appending.read(after=1))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", '{"id": "mine"}'),
        ("vectors", "text"),
        ("encoder", b"\xff"),
        ("kind", b"label.put"),
        ("checksum", "many"),
    ],
)
def test_a_value_of_a_wrong_type_is_detected(tmp_path: Path, column: str, value: object) -> None:
    """Only SQLite stores such a value."""
    place = Place(tmp_path)
    with closing(place.open()) as log:
        append(log, "a", "b", "c")
    place.tamper(f"UPDATE events SET {column} = :value WHERE sequence = 2", value=value)
    with pytest.raises(LogCorrupt, match="event 2 "):
        place.ids()


def test_reading_the_newest_event_verifies_it(three: Place) -> None:
    three.tamper("UPDATE events SET encoder = 'x' WHERE sequence = 3")
    with closing(three.open()) as log, pytest.raises(LogCorrupt, match="event 3 "):
        log.newest("label.put")


def test_two_events_that_changed_places_are_detected(three: Place) -> None:
    for old, new in ((1, 99), (2, 1), (99, 2)):
        three.tamper("UPDATE events SET sequence = :new WHERE sequence = :old", new=new, old=old)
    with pytest.raises(LogCorrupt, match="event 1 "):
        three.ids()


def test_an_intact_event_of_an_unknown_kind_is_named(
    log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr("service.core.label_log.appending.EVENT_KINDS", ("label.eat",))
        with log.exclusive() as appending:
            appending.append([event("a", kind="label.eat")], encoder="e")
    with pytest.raises(LogCorrupt, match=r"event 1 is of the kind 'label\.eat'"):
        list(log.read())


def test_an_error_names_the_place_and_not_the_values(log: LabelLog, place: Place) -> None:
    """Texts belong to users and must appear neither in messages nor in logged causes."""
    append(log, "a")
    place.tamper("ALTER TABLE events RENAME TO lost")
    with pytest.raises(LogError) as caught:
        append(log, "very private")
    assert str(caught.value).startswith(f"{log.place} cannot be ")
    cause = caught.value.__cause__
    assert isinstance(cause, sa.exc.SQLAlchemyError)
    assert "very private" not in str(cause)


def test_an_event_that_was_written_without_the_lock_is_not_overwritten(
    log: LabelLog, place: Place
) -> None:
    with pytest.raises(LogError, match="cannot be written"), log.exclusive() as appending:
        appending.last = -1  # as if number 0 were still free
        appending.append([event("a"), event("b")], encoder="e")
        appending.last = 0
        appending.append([event("c")], encoder="e")
    assert place.ids() == []


def test_a_log_that_lost_what_this_process_wrote_is_not_written(
    log: LabelLog, place: Place
) -> None:
    """As after a copy of an older file over the present one, or a failover to an older replica."""
    append(log, "a", "b")
    place.tamper("DELETE FROM events WHERE sequence = 2")
    with pytest.raises(
        LogReplaced, match="ends at event 1, but this process has written or read event 2"
    ):
        append(log, "c")
    assert log.last_sequence() == 1
