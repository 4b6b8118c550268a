"""Formats: creating, migrating, refusing; and logs that are only looked at."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from service.core.errors import LogError
from service.core.label_log import FORMAT_VERSION, AnsweredRequest, LabelLog
from tests.support.label_logs import Place, append

VERSION_1 = Path(__file__).parents[4] / "golden" / "label-log-v1"
REQUEST = AnsweredRequest(key="k", digest="d", version=1, answer={})


@pytest.fixture
def old(tmp_path: Path) -> Place:
    """A copy of a log that format 1 wrote."""
    return Place(Path(shutil.copytree(VERSION_1, tmp_path / "old")))


def test_a_log_keeps_its_id(place: Place) -> None:
    with closing(place.open()) as log:
        made = log.id
    assert len(bytes.fromhex(made)) == 16
    with closing(place.open()) as log, closing(place.open(create=False)) as reader:
        assert (log.id, reader.id) == (made, made)
    assert place.tamper("SELECT version, id FROM log_format") == [(FORMAT_VERSION, made)]


def test_two_logs_have_different_ids(tmp_path: Path) -> None:
    made = set()
    for name in ("a", "b"):
        with closing(Place(tmp_path / name).open()) as log:
            made.add(log.id)
    assert len(made) == 2


def test_format_1_is_migrated_and_nothing_is_lost(old: Place) -> None:
    before = old.tamper("SELECT * FROM events ORDER BY sequence")
    with closing(old.open()) as log:
        assert len(bytes.fromhex(log.id)) == 16
        assert [event.body["id"] for event in log.read()] == ["kayak", "tent"]
        with log.exclusive() as appending:
            appending.remember(REQUEST)
        assert append(log, "new")[0].sequence == 3
        made = log.id
    after = old.tamper("SELECT * FROM events ORDER BY sequence")
    assert after[:2] == before
    with closing(old.open()) as log, log.exclusive() as appending:
        assert (log.id, appending.last) == (made, 3)
        assert appending.answered("k") == REQUEST


def test_a_migrated_log_has_what_a_new_one_has(old: Place, tmp_path: Path) -> None:
    new = Place(tmp_path / "new")
    for place in (old, new):
        place.open().close()
    names = "SELECT type, name FROM sqlite_master ORDER BY name"
    assert old.tamper(names) == new.tamper(names)


def test_a_migration_that_fails_leaves_format_1(old: Place) -> None:
    old.tamper("CREATE TABLE requests (name TEXT)")
    with pytest.raises(LogError, match="cannot be opened: table requests already exists"):
        old.open()
    old.tamper("DROP TABLE requests")
    assert old.tamper("SELECT * FROM log_format") == [(1,)]
    assert old.ids() == ["kayak", "tent"]


def test_who_create_at_once_get_the_same_log(place: Place) -> None:
    """Also in processes of their own: see `test_sharing`."""
    assert len(set(ids_of_openers(place))) == 1


def test_who_migrate_at_once_get_the_same_log(old: Place) -> None:
    assert len(set(ids_of_openers(old))) == 1
    assert old.ids() == ["kayak", "tent"]


def ids_of_openers(place: Place) -> list[str]:
    """What four that open a log at the same moment take for its id."""
    together = threading.Barrier(4)

    def open_and_close(_number: int) -> str:
        together.wait()
        with closing(place.open()) as log:
            return log.id

    with ThreadPoolExecutor(together.parties) as openers:
        return list(openers.map(open_and_close, range(together.parties)))


@pytest.mark.parametrize("version", [0, 3])
@pytest.mark.parametrize("create", [True, False])
def test_another_format_version_is_refused(three: Place, version: int, create: bool) -> None:
    three.tamper("UPDATE log_format SET version = :version", version=version)
    message = f"has log format {version}; this build reads 1 to 2"
    for _ in range(2):
        with pytest.raises(LogError, match=message):
            three.open(create=create)
    three.tamper("UPDATE log_format SET version = 2")
    assert three.ids() == ["a", "b", "c"]


def test_somebody_elses_database_is_refused_and_left_alone(place: Place) -> None:
    place.tamper("CREATE TABLE events (name TEXT)")
    with pytest.raises(LogError, match=r"cannot be opened: .*events.* already exists"):
        place.open()
    assert place.tamper("SELECT * FROM events") == []
    with pytest.raises(LogError, match="holds no label log"):
        place.open(create=False)


def test_a_format_table_without_a_row_is_refused(three: Place) -> None:
    three.tamper("DELETE FROM log_format")
    with pytest.raises(LogError, match="has log format None"):
        three.open()


# Only looking ----------------------------------------------------------------------------


def test_looking_at_a_log_that_is_not_there_creates_nothing(place: Place, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="holds no label log"):
        place.open(create=False)
    assert list(tmp_path.iterdir()) == []
    if isinstance(place.state, str):
        assert place.tamper("SELECT to_regclass('events')") == [(None,)]


def test_looking_at_format_1_does_not_migrate_it(old: Place) -> None:
    with closing(old.open(create=False)) as log:
        assert log.id == ""
        assert [event.body["id"] for event in log.read()] == ["kayak", "tent"]
    assert old.tamper("SELECT * FROM log_format") == [(1,)]


def test_who_only_looks_cannot_append(three: Place) -> None:
    with closing(three.open(create=False)) as log:
        with pytest.raises(LogError, match=r"cannot be written: .*read-?only"):
            append(log, "d")
        assert log.last_sequence() == 3


def test_one_looks_while_another_one_appends(log: LabelLog, place: Place) -> None:
    append(log, "a")
    with closing(place.open(create=False)) as reader:
        with log.exclusive() as appending:
            assert appending.last == 1
            assert [event.body["id"] for event in reader.read()] == ["a"]
        append(log, "b")
        assert [event.body["id"] for event in reader.read(after=1)] == ["b"]
