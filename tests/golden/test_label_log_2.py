"""What format 2 of the label log wrote stays readable; `write_label_log_2` wrote it."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from service.core.label_log import open_log
from service.core.label_log.check import verify
from tests.golden.write_label_log_2 import ENCODER, EVENTS, LOG, REQUEST, vectors
from tests.support.label_logs import Place

ID = "354ac420cb744b338954cb90087a1278"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Opening a log touches its folder."""
    return Path(shutil.copytree(LOG, tmp_path / "log"))


@pytest.mark.parametrize("create", [True, False])
def test_every_event_is_read_as_it_was_written(copy: Path, create: bool) -> None:
    with closing(open_log(copy, create=create)) as log:
        assert log.id == ID
        events = list(log.read())
        assert verify(log).events == len(EVENTS)
    assert [(event.kind, event.body) for event in events] == [
        (kind, body) for kind, body, _ in EVENTS
    ]
    assert {event.encoder for event in events} == {ENCODER}
    for event, (_, _, rows) in zip(events, EVENTS, strict=True):
        assert event.vectors is not None
        assert event.vectors.tobytes() == vectors(event.sequence, rows).tobytes()


def test_a_kept_answer_is_found_once_its_day_is_today(copy: Path) -> None:
    Place(copy).tamper("UPDATE requests SET written = strftime('%s', 'now')")
    with closing(open_log(copy)) as log, log.exclusive() as appending:
        assert appending.answered(REQUEST.key) == REQUEST


def test_the_log_goes_on(copy: Path) -> None:
    with closing(open_log(copy)) as log, log.exclusive() as appending:
        assert appending.last == len(EVENTS)


def test_the_fixture_is_small() -> None:
    files = [path for path in LOG.rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["labels.sqlite"]
    assert files[0].stat().st_size < 50_000
