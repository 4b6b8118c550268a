"""A label log of format 1, written by `write_label_log` of then, is upgraded and stays readable."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from service.core.errors import LogCorrupt, LogError
from service.core.label_log import open_log
from service.core.label_log.maintenance.check import verify
from tests.golden.write_label_log import ENCODER, EVENTS, LOG, REQUEST, vectors
from tests.support.label_logs import Place, event

ID = "3084982bda6648eabddcd050cd085920"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the log, because opening a log writes into its folder."""
    return Path(shutil.copytree(LOG, tmp_path / "log"))


def test_a_log_that_is_only_read_is_not_upgraded(copy: Path) -> None:
    before = (copy / "labels.sqlite").read_bytes()
    with pytest.raises(
        LogError, match=r"has label log format 1, .* start a service of this version"
    ):
        open_log(copy, create=False)
    assert (copy / "labels.sqlite").read_bytes() == before


def test_a_damaged_log_is_not_upgraded(copy: Path) -> None:
    Place(copy).tamper("UPDATE events SET body = '{}' WHERE sequence = 2")
    for _ in range(2):
        with pytest.raises(LogCorrupt, match="event 2 was altered"):
            open_log(copy)
    assert Place(copy).tamper("SELECT version FROM log_format") == [(1,)]
    assert len(Place(copy).tamper("SELECT * FROM events")) == len(EVENTS)


def test_times_of_writing_are_kept(copy: Path) -> None:
    before = Place(copy).tamper("SELECT written FROM events ORDER BY sequence")
    open_log(copy).close()
    assert Place(copy).tamper("SELECT written FROM events ORDER BY sequence") == before


@pytest.mark.parametrize("create", [True, False])
def test_every_event_is_read_as_it_was_written(copy: Path, create: bool) -> None:
    open_log(copy).close()
    with closing(open_log(copy, create=create)) as log:
        assert log.id == ID
        events = list(log.read())
        assert verify(log).events == len(EVENTS)
    assert [(read.kind, read.body) for read in events] == [(kind, body) for kind, body, _ in EVENTS]
    assert {read.encoder for read in events} == {ENCODER}
    for read, (_, _, rows) in zip(events, EVENTS, strict=True):
        assert read.vectors is not None
        assert read.vectors.tobytes() == vectors(read.sequence, rows).tobytes()


def test_a_remembered_answer_is_found_within_its_day(copy: Path) -> None:
    Place(copy).tamper("UPDATE requests SET written = strftime('%s', 'now')")
    with closing(open_log(copy)) as log, log.exclusive() as appending:
        assert appending.answered(REQUEST.key) == REQUEST


def test_the_log_can_be_appended_to(copy: Path) -> None:
    with closing(open_log(copy)) as log, log.exclusive() as appending:
        assert appending.last == len(EVENTS)
        (appended,) = appending.append([event("new")], encoder=ENCODER)
    assert appended.sequence == len(EVENTS) + 1
    assert Place(copy).ids(after=len(EVENTS)) == ["new"]


def test_the_fixture_is_small() -> None:
    files = [path for path in LOG.rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["labels.sqlite"]
    assert files[0].stat().st_size < 50_000
