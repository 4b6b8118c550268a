"""The golden label log of format 1, which `write_label_log` wrote, can be read and appended to."""

import shutil
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from service.core.changes import CHANGES
from service.core.label_log import open_log
from service.core.label_log.maintenance import verify
from tests.golden.write_label_log import ENCODER, EVENTS, LOG, REQUEST, vectors
from tests.support.label_logs import Place, event

ID = "1d8a90b788c6455ab91940f93f13e7ff"
CHAIN = "c833e6f6e5bb32ed26c0c039a34f8640"  # the hash of the log's newest event


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the log, because opening a log writes into its folder."""
    return Path(shutil.copytree(LOG, tmp_path / "log"))


@pytest.mark.parametrize("create", [True, False])
def test_every_event_is_read_as_it_was_written(copy: Path, create: bool) -> None:
    with closing(open_log(copy, create=create)) as log:
        assert (log.id, log.link_at(len(EVENTS)).chain.hex()) == (ID, CHAIN)
        events = list(log.read())
        assert verify(log).events == len(EVENTS)
    assert [(read.kind, read.body) for read in events] == [(kind, body) for kind, body, _ in EVENTS]
    assert {read.encoder for read in events} == {ENCODER}
    for read, (_, _, rows) in zip(events, EVENTS, strict=True):
        assert read.vectors is not None
        assert read.vectors.tobytes() == vectors(read.sequence, rows).tobytes()
    assert {read.kind for read in events} == CHANGES.keys()
    for read in events:
        change = CHANGES[read.kind].from_event(read, lambda _: vectors(1, 1))
        assert orjson.loads(orjson.dumps(change.body())) == read.body


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
