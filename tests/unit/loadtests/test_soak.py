"""A soak test's record of written labels, its drift, and its verdicts."""

import numpy as np
import pytest

from loadtests.clients.connection import RequestFailed
from loadtests.soak.__main__ import rows_of
from loadtests.soak.course import Course
from loadtests.soak.ledger import Ledger, Refused, Write
from loadtests.soak.samples import Sample, drift
from service.core.errors import CommandFailed
from service.core.types import Event

AXE = Write(kind="label.put", subject="axe", text="ice axe")
ROPE = Write(kind="label.put", subject="rope", text="rope")
CLICK = Write(kind="instance.put", subject="climbing")


def answered(version: int):
    return lambda _request: (200, b'{"version": %d}' % version)


def failing(error: Exception):
    def ask(_request: bytes) -> tuple[int, bytes]:
        raise error

    return ask


def event(sequence: int, kind: str, **body: object) -> Event:
    return Event(sequence=sequence, kind=kind, body=body, vectors=np.zeros((0, 0), np.float16))


def samples(private: list[float], descriptors: list[int] | None = None) -> list[Sample]:
    return [
        Sample(at=100.0 + place, resident=size + 50, private=size, descriptors=files, live=1)
        for place, (size, files) in enumerate(
            zip(private, descriptors or [20] * len(private), strict=True)
        )
    ]


def course(**options: object) -> Course:
    made = Course(samples=samples([100.0] * 12), events={"restarted": 10.0})
    for name, value in options.items():
        setattr(made, name, value)
    return made


def test_a_lost_write_and_another_one_in_its_place_are_noticed() -> None:
    ledger = Ledger()
    ledger.write(answered(2), b"", [AXE, ROPE])
    ledger.write(answered(3), b"", [CLICK])
    axe = event(1, "label.put", id="axe", text="ice axe", queries=[], metadata={})
    rope = event(2, "label.put", id="rope", text="rope", queries=[], metadata={})
    click = event(3, "instance.put", query="climbing", labels=["axe"])

    assert ledger.lost([axe, rope, click]) == []
    assert ledger.lost([axe, rope]) == [3]
    assert ledger.lost([axe, event(2, "label.put", id="rope", text="string"), click]) == [2]


def test_what_was_not_answered_may_have_been_written_or_not() -> None:
    ledger = Ledger()
    ledger.write(answered(1), b"", [AXE])
    changed = Write(kind="label.put", subject="axe", text="another axe")
    deleted = Write(kind="label.delete", subject="rope")
    for write in (changed, deleted, CLICK):
        with pytest.raises(RequestFailed):
            ledger.write(failing(RequestFailed("closed")), b"", [write])
    with pytest.raises(Refused):
        ledger.write(failing(Refused("429")), b"", [Write(kind="label.put", subject="saw")])

    assert ledger.labels() == {"axe": {"ice axe", "another axe"}, "rope": {None}}
    ledger.write(answered(2), b"", [Write(kind="label.delete", subject="axe")])
    assert ledger.labels()["axe"] == {None, "another axe"}


def test_drift_compares_the_medians_of_the_first_and_the_last_quarter() -> None:
    grown = drift(samples([10, 10, 500, 1, 1, 1, 1, 1, 1, 11, 11, 0]), lambda one: one.private)
    assert (grown.first, grown.last, round(grown.share, 3)) == (10, 11, 0.1)


def test_a_good_course_meets_every_goal() -> None:
    assert [row.met for row in rows_of(course(), seconds=60)] == [True] * 4 + [None] * 2


@pytest.mark.parametrize(
    ("place", "options"),
    [
        (0, {"lost": 1}),
        (0, {"missing_labels": {"at the end": 1}}),
        (1, {"answers": {"after it: 503": 1}}),
        (1, {"answers": {"after it: ConnectionResetError": 1}}),
        (2, {"samples": samples([100.0] * 6 + [103.0] * 6)}),
        (3, {"samples": samples([100.0] * 12, [20] * 6 + [25] * 6)}),
    ],
)
def test_each_failure_is_a_goal_that_is_missed(place: int, options: dict[str, object]) -> None:
    met = [row.met for row in rows_of(course(**options), seconds=60)]
    assert [number for number, good in enumerate(met) if good is False] == [place]


def test_the_kill_may_break_connections() -> None:
    broken = course(answers={"before the kill: ConnectionResetError": 3, "after it: 200": 7})
    assert next(row for row in rows_of(broken, seconds=60) if "answers" in row.what).met


def test_a_course_that_was_too_short_cannot_be_judged() -> None:
    with pytest.raises(CommandFailed, match="more --minutes"):
        list(rows_of(course(samples=samples([100.0] * 7)), seconds=60))
