"""The rows of the reports about attacks, overload and soaks, and their goals."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadtests.attacks import Round, internal_errors, rows_of
from loadtests.loops import BROKEN, LEFT, Fate, Outcome
from loadtests.overload import SINGLE, Overloaded, overload_rows
from loadtests.report import Row
from loadtests.soak import Course, Sample, quarters
from loadtests.soak import rows_of as soak_rows
from loadtests.soak_writes import Ledger, Write
from loadtests.traffic import Health
from service.core.errors import CommandFailed
from service.core.types import Event

# Attacks --------------------------------------------------------------------------------------


def measured(
    seconds: float = 0.01,
    *,
    probe: float = 0.01,
    failures: dict[str, int] | None = None,
    **changed: Any,
) -> Round:
    usual = Round(
        outcome=Outcome(latencies=[seconds] * 100, failures=failures or {}),
        health=Health(seconds=[probe]),
        most_resident=400.0,
        budget=1_000.0,
        first_after=0.01,
        first_status=200,
        internal_errors=0,
        defects=0,
    )
    return replace(usual, **changed)


@pytest.mark.parametrize(
    ("beside", "missed"),
    [
        (measured(0.045), []),
        (measured(0.055), ["latency"]),
        (measured(failures={"429": 3}), []),
        (measured(failures={"500": 1}), ["latency"]),
        (measured(failures={"ConnectionResetError": 1}), ["latency"]),
        (measured(probe=0.2), ["probes"]),
        (measured(health=Health(seconds=[0.01], failures=["503"])), ["probes"]),
        (measured(most_resident=1_001.0), ["memory"]),
        (measured(first_after=0.049), []),
        (measured(first_after=0.051), ["afterwards"]),
        (measured(first_status=429), ["afterwards"]),
        (measured(internal_errors=1), ["afterwards"]),
        (measured(defects=1), ["afterwards"]),
    ],
)
def test_what_must_hold_beside_an_attack_and_after_it(beside: Round, missed: list[str]) -> None:
    goals = ("latency", "probes", "memory", "afterwards")
    rows = zip(goals, rows_of("a", measured(), beside), strict=True)
    assert [goal for goal, row in rows if not row.met] == missed
    # A quick service may answer its first request within twenty milliseconds.
    *_, afterwards = rows_of("a", measured(0.001), measured(0.001, first_after=0.019))
    assert afterwards.met


def test_only_answers_of_500_are_counted() -> None:
    metrics = """
keymatch_requests_total{route="/predict",status="500"} 2.0
keymatch_requests_total{route="/labels",status="500"} 1.0
keymatch_requests_total{route="/predict",status="503"} 9.0
keymatch_request_seconds_count{route="/predict"} 500.0
"""
    assert internal_errors(metrics) == 3


# Overload -------------------------------------------------------------------------------------


def overloaded(requests: Sequence[tuple[float, int, float]]) -> Overloaded:
    """Return one second of overload, and half a second of recovery.

    A request is (start, status, seconds).
    """
    after = [(1.0 + number / 100, 200, 0.010) for number in range(50)]
    starts, status, seconds = zip(*requests, *after, strict=True)
    fate = Fate(
        stream=np.zeros(len(starts), np.int16),
        late=np.zeros(len(starts)),
        starts=np.array(starts),
        status=np.array(status, np.int16),
        seconds=np.array(seconds),
        cpu=0.1,
        idle_lost=0,
    )
    health = Health(seconds=[0.004, 0.006])
    return Overloaded(rate=400, seconds=1.0, fate=fate, health=health, server_cpu=0.3)


GOOD = overloaded([(0.5, 200, 0.020)] * 90 + [(0.5, 429, 0.002)] * 300)


def judged(run: Overloaded) -> list[Row]:
    return [*overload_rows(SINGLE, 4, run, saturation=100)]


def test_answers_refusals_health_and_recovery_meet_their_goals() -> None:
    answered, refused, health, cpu = judged(GOOD)
    assert (answered.met, refused.met, health.met, cpu.met) == (True, True, True, None)
    assert answered.figures["share"] == 0.9
    assert (round(answered.figures["p99"]), answered.figures["count"]) == (20, 90)
    assert refused.figures["statuses"] == {"200": 140, "429": 300}
    assert health.figures["recovery_seconds"] == 0.0


def test_a_loss_or_a_slow_answer_misses_a_goal() -> None:
    slow = overloaded([(0.5, 200, 0.080)] * 90 + [(0.5, 429, 0.030)] * 300)
    assert [row.met for row in judged(slow)[:2]] == [False, False]
    broken = overloaded([(0.5, 200, 0.020)] * 90 + [(0.5, 429, 0.002)] * 299 + [(0.5, BROKEN, 1)])
    assert not judged(broken)[1].met
    left = overloaded([(0.5, 200, 0.020)] * 90 + [(0.5, 429, 0.002)] * 299 + [(0.5, LEFT, 1)])
    assert judged(left)[1].met  # the client itself disconnected
    probed = replace(GOOD, health=Health(seconds=[0.004, 0.150]))
    assert not judged(probed)[2].met
    failing = replace(GOOD, health=Health(seconds=[0.004], failures=["503"]))
    assert not judged(failing)[2].met


def test_where_nothing_was_answered_there_is_no_latency() -> None:
    answered, refused, health, _ = judged(
        replace(overloaded([(0.5, BROKEN, 5.0)] * 10), health=Health())
    )
    assert not (answered.met or refused.met or health.met)
    assert answered.measured == "0/s = 0%; no answer"
    assert answered.figures["count"] == 0


# Soak: the ledger of writes, and verdicts -----------------------------------------------------

AXE = Write(kind="label.put", subject="axe", text="ice axe")
ROPE = Write(kind="label.put", subject="rope", text="rope")
CLICK = Write(kind="instance.put", subject="climbing")


def event(sequence: int, kind: str, **body: object) -> Event:
    return Event(sequence=sequence, kind=kind, body=body, vectors=np.zeros((0, 0), np.float16))


def samples(private: list[float], descriptors: list[int] | None = None) -> list[Sample]:
    return [
        Sample(at=100.0 + place, private=size, shared=50, descriptors=files)
        for place, (size, files) in enumerate(
            zip(private, descriptors or [20] * len(private), strict=True)
        )
    ]


def course(**options: object) -> Course:
    steady = {"samples": samples([100.0] * 12), "events": {"restarted": 10.0}}
    return Course(**{**steady, **options})


def test_a_lost_write_and_another_one_in_its_place_are_noticed() -> None:
    ledger = Ledger()
    ledger.acknowledge(2, [AXE, ROPE])
    ledger.acknowledge(3, [CLICK])
    axe = event(1, "label.put", id="axe", text="ice axe", queries=[], metadata={})
    rope = event(2, "label.put", id="rope", text="rope", queries=[], metadata={})
    click = event(3, "instance.put", query="climbing", labels=["axe"])

    assert ledger.lost([axe, rope, click]) == []
    assert ledger.lost([axe, rope]) == [3]
    negative = event(3, "instance.put", query="climbing", labels=["axe"], weight=-1.0)
    assert ledger.lost([axe, rope, negative]) == [3]
    assert ledger.lost([axe, event(2, "label.put", id="rope", text="string"), click]) == [2]


def test_what_was_not_answered_may_have_been_written_or_not() -> None:
    ledger = Ledger()
    ledger.acknowledge(1, [AXE])
    changed = Write(kind="label.put", subject="axe", text="another axe")
    deleted = Write(kind="label.delete", subject="rope")
    ledger.sent_without_answer([changed, deleted, CLICK])

    axe, another = ("ice axe", 1.0), ("another axe", 1.0)
    assert ledger.possible() == {"/labels/axe": {axe, another}, "/labels/rope": {None}}
    ledger.acknowledge(2, [Write(kind="label.delete", subject="axe")])
    assert ledger.possible()["/labels/axe"] == {None, another}
    ledger.acknowledge(3, [Write(kind="rule.put", subject="pin", text="ice")])
    assert ledger.possible()["/rules/pin"] == {("ice", 1.0)}


def test_medians_of_the_first_and_the_last_quarter_are_compared() -> None:
    assert quarters([10, 10, 500, 1, 1, 1, 1, 1, 1, 11, 11, 0]) == (10, 11)


@pytest.mark.parametrize(
    ("place", "options"),
    [
        (None, {}),
        # The kill may break connections.
        (None, {"answers": {"before the kill: ConnectionResetError": 3, "after it: 200": 7}}),
        (0, {"lost": 1}),
        (0, {"differing": {"at the end": 1}}),
        (1, {"answers": {"after it: 503": 1}}),
        (1, {"answers": {"after it: ConnectionResetError": 1}}),
        (2, {"samples": samples([100.0] * 6 + [103.0] * 6)}),
        (3, {"samples": samples([100.0] * 12, [20] * 6 + [25] * 6)}),
    ],
)
def test_each_failure_is_a_goal_that_is_missed(
    place: int | None, options: dict[str, object]
) -> None:
    met = [row.met for row in soak_rows(course(**options), seconds=60)]
    assert met == [number != place for number in range(4)] + [None] * 2


def test_a_course_that_was_too_short_cannot_be_judged() -> None:
    with pytest.raises(CommandFailed, match="more --minutes"):
        list(soak_rows(course(samples=samples([100.0] * 7)), seconds=60))
