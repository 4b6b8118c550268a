"""Rows of events: their chain of hashes, and the refusal of altered, missing or foreign events."""

import shutil
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st

from service.core.changes import PutLabel
from service.core.errors import LogCorrupt, LogError, LogReplaced
from service.core.label_log import LabelLog, open_log, rows
from service.core.label_log.database import Database
from service.core.label_log.maintenance import survey
from service.core.label_log.newest_note import FILE_NAME as NOTE
from service.core.label_log.postgres import PostgresDatabase
from service.core.label_log.rows import Content, Link, event_of, first_chain, row_of
from service.core.label_log.schema import events
from service.core.label_log.sqlite import SqliteDatabase
from tests.support.label_logs import Place, append, event, ids

ALTERED = "event 2 was altered: its checksum is wrong"
KIND = PutLabel.kind

numbers = st.integers(-(2**63), 2**63 - 1)
documents = st.dictionaries(st.text(max_size=5), numbers | st.text(max_size=5), max_size=3)
json_values = documents | st.none() | st.booleans() | numbers | st.text() | st.lists(numbers)
bodies = st.binary(max_size=40) | json_values.map(orjson.dumps)


def content(body: bytes, vectors: bytes, *, sequence: int = 4, kind: str = KIND) -> Content:
    return Content(sequence=sequence, kind=kind, body=body, vectors=vectors, encoder="e")


def row(body: bytes, vectors: bytes) -> list[Any]:
    """A stored row with a correct checksum."""
    stored = content(body, vectors)
    return [*stored, stored.checksum(), 0.0, b""]


def test_a_chain_is_the_hash_of_the_one_before_and_of_the_event() -> None:
    def digest(content: bytes) -> bytes:
        return blake2b(content, digest_size=16).digest()

    assert first_chain("0f") == digest(b"0f")
    chain = content(b"{}", b"\x01\x02", sequence=7).chain(b"before")
    assert chain == digest(b"before7\0label.put\0{}\0\x01\x02\0e")


def test_each_event_follows_from_the_one_before(three: Place) -> None:
    with closing(three.open()) as log:
        links = [log.link_at(number) for number in range(4)]
        assert links[0] == Link(sequence=0, chain=first_chain(log.id))
        for before, link, event in zip(links, links[1:], log.read(), strict=False):
            assert row_of(event, before=before.chain)["chain"] == link.chain


@given(body=bodies, vectors=st.binary(max_size=20))
@example(body=b"[1]", vectors=b"")
@example(body=b"", vectors=b"")
@example(body=b"{}", vectors=b"odd")
def test_an_object_and_whole_numbers_are_read_and_others_named(body: bytes, vectors: bytes) -> None:
    try:
        document = orjson.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and len(vectors) % 2 == 0:
        event = event_of(row(body, vectors), place="the log")
        assert event.body == document
        assert event.vectors is not None and event.vectors.tobytes() == vectors
    else:
        with pytest.raises(LogCorrupt, match=r"^the log: event 4 cannot be read: "):
            event_of(row(body, vectors), place="the log")


@pytest.mark.parametrize(
    ("kind", "body", "vectors", "said"),
    [
        (KIND, b"{", b"", "event 2 cannot be read: "),
        (KIND, b"[1]", b"", "event 2 cannot be read: "),
        (KIND, b"{}", b"odd", "event 2 cannot be read: "),
        ("label.eat", b"{}", b"", r"event 2 is of the kind 'label\.eat'"),
    ],
)
def test_an_intact_row_that_no_version_writes_is_named_and_left_out_of_a_recovery(
    place: Place, log: LabelLog, kind: str, body: bytes, vectors: bytes, said: str
) -> None:
    append(log, "a")
    stored = content(body, vectors, sequence=2, kind=kind)
    hashes = {"checksum": stored.checksum(), "chain": stored.chain(log.link_at(1).chain)}
    with place.connected() as connection:
        connection.execute(events.insert(), {**stored._asdict(), **hashes, "written": 0.0})
    append(log, "c")
    with pytest.raises(LogCorrupt, match=said):
        ids(log)
    assert str(survey(log)) == "whole are the events 1, 3; lost are 2"
    assert ids(log, after=2) == ["c"]


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
    three.alter(2, **{column: value})
    with closing(three.open()) as log:
        with pytest.raises(LogCorrupt, match=said):
            ids(log)
        with log.exclusive() as appending, pytest.raises(LogCorrupt, match=said):
            ids(appending, after=1)


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
        place.alter(2, **{column: value})
        with pytest.raises(LogCorrupt, match="event 2 "):
            ids(log)
        if column == "chain":
            with pytest.raises(LogCorrupt, match="event 2 was altered: its chain is no hash"):
                log.link_at(2)


def test_reading_the_newest_event_verifies_it(three: Place) -> None:
    three.alter(3, encoder="x")
    with closing(three.open()) as log, pytest.raises(LogCorrupt, match="event 3 "):
        log.newest(KIND)


def test_two_events_that_changed_places_are_detected(three: Place) -> None:
    for old, new in ((1, 99), (2, 1), (99, 2)):
        three.alter(old, sequence=new)
    with pytest.raises(LogCorrupt, match="event 1 "):
        three.ids()


def test_an_event_that_was_written_anew_with_its_checksum_is_detected(three: Place) -> None:
    """The next event's hash reveals it, because that covers all events before it."""
    with closing(three.open()) as log:
        [second] = log.read(after=1, until=2)
        second.body["text"] = "another text"
        forged = row_of(second, before=log.link_at(1).chain)
    three.alter(2, **{name: forged[name] for name in ("body", "checksum", "chain")})
    with pytest.raises(LogCorrupt, match="event 3 does not follow from the events before it"):
        three.ids()


def test_an_error_names_the_place_and_not_the_values(log: LabelLog, place: Place) -> None:
    """Texts belong to users and must appear neither in messages nor in logged causes."""
    append(log, "a")
    place.tamper("ALTER TABLE events RENAME TO lost")
    with pytest.raises(LogError) as caught:
        append(log, "very private")
    # Whether the file is seen to have changed first depends on the clock's ticks.
    assert str(caught.value).startswith(f"{log.place} ")
    causes: list[BaseException] = [caught.value]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    assert any(isinstance(cause, sa.exc.SQLAlchemyError) for cause in causes)
    assert not any("very private" in str(cause) for cause in causes)


def test_an_append_that_fails_halfway_writes_nothing(log: LabelLog, place: Place) -> None:
    """An event that was written without the lock is not overwritten."""
    with pytest.raises(LogError, match="cannot be written"), log.exclusive() as appending:
        appending.append([event("a"), event("b")], encoder="e")
        appending.newest_link = Link(sequence=0, chain=b"")  # as if number 1 were still free
        appending.append([event("c")], encoder="e")
    assert place.ids() == []
    assert append(log, "d")[0].sequence == 1


@pytest.mark.parametrize("wrote", [True, False])
def test_a_log_that_lost_what_this_process_knows_is_not_written(
    log: LabelLog, place: Place, wrote: bool
) -> None:
    """An older file may have been copied over it, or the database failed over to an old replica."""
    with closing(place.open()) as other:
        append(log if wrote else other, "a", "b")
    if not wrote:
        ids(log)
    place.tamper("DELETE FROM events WHERE sequence = 2")
    with pytest.raises(
        LogReplaced, match="ends at event 1, but this process has written or read event 2"
    ):
        append(log, "c")
    assert log.last_sequence() == 1


def test_a_log_that_went_on_by_itself_is_not_written(three: Place) -> None:
    """It even has more events than this process knows, so only the chain of hashes differs."""
    with closing(three.open()) as log:
        assert ids(log) == ["a", "b", "c"]
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
