"""Creating logs, refusing other formats, and opening logs for reading only."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from service.core.errors import LogError
from service.core.label_log import FORMAT_VERSION, LabelLog
from tests.support.label_logs import Place, append


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


def test_openers_that_create_at_the_same_moment_get_the_same_log(place: Place) -> None:
    assert len(set(ids_of_openers(place))) == 1


def ids_of_openers(place: Place) -> list[str]:
    """The ids that four threads read which open a log at the same moment."""
    together = threading.Barrier(4)

    def open_and_close(_number: int) -> str:
        together.wait()
        with closing(place.open()) as log:
            return log.id

    with ThreadPoolExecutor(together.parties) as openers:
        return list(openers.map(open_and_close, range(together.parties)))


@pytest.mark.parametrize("version", [0, 3])
@pytest.mark.parametrize("create", [True, False])
def test_another_format_version_is_refused_and_left_alone(
    three: Place, version: int, create: bool
) -> None:
    three.tamper("UPDATE log_format SET version = :version", version=version)
    message = f"has label log format {version}, and .* reads only format 2: use the version that"
    for _ in range(2):
        with pytest.raises(LogError, match=message):
            three.open(create=create)
    three.tamper("UPDATE log_format SET version = 2")
    assert three.ids() == ["a", "b", "c"]


def test_a_database_of_another_program_is_refused_and_left_alone(place: Place) -> None:
    place.tamper("CREATE TABLE events (name TEXT)")
    with pytest.raises(LogError, match=r"cannot be opened: .*events.* already exists"):
        place.open()
    assert place.tamper("SELECT * FROM events") == []
    with pytest.raises(LogError, match="holds no label log"):
        place.open(create=False)


def test_a_format_table_without_a_row_is_refused(three: Place) -> None:
    three.tamper("DELETE FROM log_format")
    with pytest.raises(LogError, match="has label log format None"):
        three.open()


# Opened for reading only ------------------------------------------------------------------


def test_opening_a_missing_log_for_reading_creates_nothing(place: Place, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="holds no label log"):
        place.open(create=False)
    assert list(tmp_path.iterdir()) == []
    if isinstance(place.state, str):
        assert place.tamper("SELECT to_regclass('events')") == [(None,)]


def test_a_log_opened_for_reading_cannot_be_appended_to(three: Place) -> None:
    with closing(three.open(create=False)) as log:
        with pytest.raises(LogError, match=r"cannot be written: .*read-?only"):
            append(log, "d")
        assert log.last_sequence() == 3


def test_a_log_is_read_while_another_process_appends(log: LabelLog, place: Place) -> None:
    append(log, "a")
    with closing(place.open(create=False)) as reader:
        with log.exclusive() as appending:
            assert appending.last == 1
            assert [event.body["id"] for event in reader.read()] == ["a"]
        append(log, "b")
        assert [event.body["id"] for event in reader.read(after=1)] == ["b"]
