"""`verify` checks every event of a log and counts them."""

from contextlib import closing
from datetime import UTC, datetime

import pytest

from service.core.changes import DeleteLabel, PutLabel
from service.core.errors import LogCorrupt
from service.core.label_log import LabelLog
from service.core.label_log.maintenance.check import LogReport, verify
from tests.support.label_logs import Place, append, event


def test_a_report_counts_events_by_kind_and_encoder(log: LabelLog, place: Place) -> None:
    assert verify(log) == LogReport(
        events=0, first=0, last=0, kinds={}, encoders={}, size=0, newest=None
    )
    before = datetime.now(UTC)
    append(log, "a", "b", encoder="first")
    with log.exclusive() as appending:
        appending.append([event("c", kind=DeleteLabel.kind)], encoder="second")
    report = verify(log)
    assert (report.events, report.first, report.last) == (3, 1, 3)
    assert report.kinds == {PutLabel.kind: 2, DeleteLabel.kind: 1}
    assert report.encoders == {"first": 2, "second": 1}
    assert [(report.size,)] == place.tamper(
        "SELECT SUM(LENGTH(body) + LENGTH(vectors)) FROM events"
    )
    assert report.newest is not None and before <= report.newest <= datetime.now(UTC)


def test_only_events_after_a_number_are_verified(three: Place) -> None:
    three.tamper("UPDATE events SET encoder = 'x' WHERE sequence = 1")
    with closing(three.open()) as log:
        report = verify(log, after=1)
        assert (report.events, report.first, report.last) == (2, 2, 3)
        assert verify(log, after=3).events == 0
        with pytest.raises(LogCorrupt, match="event 1 "):
            verify(log)


@pytest.mark.parametrize("time", [float("inf"), 1e300])
def test_an_event_without_a_valid_time_is_corrupt(three: Place, time: float) -> None:
    three.tamper("UPDATE events SET written = :time WHERE sequence = 2", time=time)
    with closing(three.open()) as log, pytest.raises(LogCorrupt, match="event 2 has no valid time"):
        verify(log)
