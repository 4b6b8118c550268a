"""Altered, missing, moved or rewritten events are detected, and the error names them."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.core.errors import LogCorrupt, LogError, LogReplaced
from service.core.label_log import LabelLog, open_log, rows
from service.core.label_log.database import Database
from service.core.label_log.newest_note import FILE_NAME as NOTE
from service.core.label_log.postgres import PostgresDatabase
from service.core.label_log.rows import Link, row_of
from service.core.label_log.sqlite import SqliteDatabase
from tests.support.label_logs import Place, append, event

ALTERED = "event 2 was altered: its checksum is wrong"


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("page", [1, 1000])
def test_a_missing_event_is_named(
    three: Place, monkeypatch: pytest.MonkeyPatch, missing: int, page: int
) -> None:
    """This also holds between two pages. Events before the missing one are still read."""
    monkeypatch.setattr(rows, "PAGE_EVENTS", page)
    three.tamper("DELETE FROM events WHERE sequence = :missing", missing=missing)
    with closing(three.open()) as log:
        events = log.read()
        assert [next(events).sequence for _ in range(1, missing)] == list(range(1, missing))
        with pytest.raises(LogCorrupt, match=f"event {missing} is missing"):
            next(events)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("body", b'{"id": "mine"}', ALTERED),
        ("body", b"", ALTERED),
        ("vectors", bytes(8), ALTERED),
        ("vectors", b"", ALTERED),
        ("encoder", "another", ALTERED),
        ("kind", "label.delete", ALTERED),
        ("kind", "label.eat", ALTERED),
        ("checksum", 0, ALTERED),
        ("chain", b"", "event 2 does not follow"),
        ("chain", bytes(16), "event 2 does not follow"),
    ],
)
def test_an_altered_event_is_named(three: Place, column: str, value: object, said: str) -> None:
    three.tamper(f"UPDATE events SET {column} = :value WHERE sequence = 2", value=value)
    with closing(three.open()) as log:
        with pytest.raises(LogCorrupt, match=said):
            list(log.read())
        with log.exclusive() as appending, pytest.raises(LogCorrupt, match=said):
            list(appending.read(after=1))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", '{"id": "mine"}'),
        ("vectors", "text"),
        ("encoder", b"\xff"),
        ("kind", b"label.put"),
        ("checksum", "many"),
        ("chain", "text"),
    ],
)
def test_a_value_of_a_wrong_type_is_detected(tmp_path: Path, column: str, value: object) -> None:
    """Only SQLite can store a value of another type than the column's."""
    place = Place(tmp_path)
    with closing(place.open()) as log:
        append(log, "a", "b", "c")
        place.tamper(f"UPDATE events SET {column} = :value WHERE sequence = 2", value=value)
        with pytest.raises(LogCorrupt, match="event 2 "):
            list(log.read())
        if column == "chain":
            with pytest.raises(LogCorrupt, match="event 2 was altered: its chain is no hash"):
                log.link_at(2)


def test_reading_the_newest_event_verifies_it(three: Place) -> None:
    three.tamper("UPDATE events SET encoder = 'x' WHERE sequence = 3")
    with closing(three.open()) as log, pytest.raises(LogCorrupt, match="event 3 "):
        log.newest("label.put")


def test_two_events_that_changed_places_are_detected(three: Place) -> None:
    for old, new in ((1, 99), (2, 1), (99, 2)):
        three.tamper("UPDATE events SET sequence = :new WHERE sequence = :old", new=new, old=old)
    with pytest.raises(LogCorrupt, match="event 1 "):
        three.ids()


def test_an_event_that_was_written_anew_with_its_checksum_is_detected(three: Place) -> None:
    """The next event's hash reveals it, because that covers all events before it."""
    with closing(three.open()) as log:
        [second] = log.read(after=1, until=2)
        second.body["text"] = "another text"
        forged = row_of(second, before=log.link_at(1).chain)
    three.tamper(
        "UPDATE events SET body = :body, checksum = :checksum, chain = :chain WHERE sequence = 2",
        **{name: forged[name] for name in ("body", "checksum", "chain")},
    )
    with pytest.raises(LogCorrupt, match="event 3 does not follow from the events before it"):
        three.ids()


def test_what_others_append_must_follow_from_what_is_known(log: LabelLog, place: Place) -> None:
    append(log, "a")
    with closing(place.open()) as other:
        append(other, "b")
    place.tamper("UPDATE events SET chain = :chain WHERE sequence = 2", chain=bytes(16))
    with pytest.raises(LogCorrupt, match="event 2 does not follow"):
        list(log.read(after=1))


def test_an_intact_event_of_an_unknown_kind_is_named(log: LabelLog) -> None:
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
        appending.append([event("a"), event("b")], encoder="e")
        appending.newest_link = Link(sequence=0, chain=b"")  # as if number 1 were still free
        appending.append([event("c")], encoder="e")
    assert place.ids() == []


@pytest.mark.parametrize("wrote", [True, False])
def test_a_log_that_lost_what_this_process_knows_is_not_written(
    log: LabelLog, place: Place, wrote: bool
) -> None:
    """An older file may have been copied over it, or the database failed over to an old replica."""
    if wrote:
        append(log, "a", "b")
    else:
        with closing(place.open()) as other:
            append(other, "a", "b")
        list(log.read())
    place.tamper("DELETE FROM events WHERE sequence = 2")
    with pytest.raises(
        LogReplaced, match="ends at event 1, but this process has written or read event 2"
    ):
        append(log, "c")
    assert log.last_sequence() == 1


def test_a_log_that_went_on_by_itself_is_not_written(three: Place) -> None:
    """It even has more events than this process knows, so only the chain of hashes differs."""
    with closing(three.open()) as log:
        list(log.read())
        three.tamper("DELETE FROM events WHERE sequence = 3")
        if isinstance(three.state, Path):
            (three.state / NOTE).unlink()
        with closing(three.open()) as other:
            append(other, "another c", "d", "e")
        with pytest.raises(LogReplaced, match="has another event 3 than this process has written"):
            append(log, "f")
        assert log.last_sequence() == 5


def test_a_link_is_found_in_a_copy_and_in_no_other_log(three: Place, tmp_path: Path) -> None:
    with closing(three.open()) as log:
        link = log.link_at(2)
        log.require(link, knows="I know")
    with closing(open_log(tmp_path / "other")) as other:
        append(other, "a", "b", "c")
        with pytest.raises(LogReplaced, match="has another event 2 than I know"):
            other.require(link, knows="I know")
    if isinstance(three.state, Path):
        shutil.copytree(three.state, tmp_path / "copy")
        with closing(open_log(tmp_path / "copy")) as copy:
            copy.require(link, knows="I know")


def test_what_is_not_found_again_after_the_commit_is_not_acknowledged(
    log: LabelLog, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, "a")
    database = SqliteDatabase if isinstance(place.state, Path) else PostgresDatabase
    require_written = database.require_written

    def lost_meanwhile(itself: Database, newest: Link) -> None:
        place.tamper("DELETE FROM events WHERE sequence = 2")
        require_written(itself, newest)

    monkeypatch.setattr(database, "require_written", lost_meanwhile)
    with pytest.raises(LogReplaced, match="ends at event 1, but this process has "):
        append(log, "b")
