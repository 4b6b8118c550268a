"""The report's rows about an overload, and their goals."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadtests.clients.flood import BROKEN, LEFT, Fate
from loadtests.overload import Overloaded, Variant, overload_rows
from loadtests.report import Row
from loadtests.traffic import Health

SINGLE = Variant(name="single queries")


def fate_of(requests: Sequence[tuple[float, int, float]]) -> Fate:
    """Summarize the outcome of requests, given as (start, status, seconds)."""
    starts, status, seconds = zip(*requests, strict=True)
    return Fate(
        starts=np.array(starts),
        status=np.array(status, np.int16),
        seconds=np.array(seconds),
        cpu=0.1,
        idle_lost=0,
    )


def overloaded(requests: Sequence[tuple[float, int, float]]) -> Overloaded:
    """Return one second of overload with these requests, and half a second of recovery."""
    after = [(1.0 + number / 100, 200, 0.010) for number in range(50)]
    return Overloaded(
        rate=400,
        seconds=1.0,
        fate=fate_of([*requests, *after]),
        health=Health(seconds=[0.004, 0.006]),
        server_cpu=0.3,
    )


GOOD = overloaded([(0.5, 200, 0.020)] * 90 + [(0.5, 429, 0.002)] * 300)


def rows_of(run: Overloaded) -> list[Row]:
    return overload_rows(SINGLE, 4, run, saturation=100)


def test_answers_refusals_health_and_recovery_meet_their_goals() -> None:
    answered, refused, health, cpu = rows_of(GOOD)
    assert (answered.met, refused.met, health.met, cpu.met) == (True, True, True, None)
    assert answered.figures["share"] == 0.9
    assert (round(answered.figures["p99"]), answered.figures["count"]) == (20, 90)
    assert refused.figures["statuses"] == {"200": 140, "429": 300}
    assert health.figures["recovery_seconds"] == 0.0


def test_a_loss_or_a_slow_answer_misses_a_goal() -> None:
    slow = overloaded([(0.5, 200, 0.080)] * 90 + [(0.5, 429, 0.030)] * 300)
    assert [row.met for row in rows_of(slow)[:2]] == [False, False]
    broken = overloaded([(0.5, 200, 0.020)] * 90 + [(0.5, 429, 0.002)] * 299 + [(0.5, BROKEN, 1)])
    assert not rows_of(broken)[1].met
    left = overloaded([(0.5, 200, 0.020)] * 90 + [(0.5, 429, 0.002)] * 299 + [(0.5, LEFT, 1)])
    assert rows_of(left)[1].met  # the client itself disconnected
    probed = replace(GOOD, health=Health(seconds=[0.004, 0.150]))
    assert not rows_of(probed)[2].met
    failing = replace(GOOD, health=Health(seconds=[0.004], failures=["503"]))
    assert not rows_of(failing)[2].met


def test_where_nothing_was_answered_there_is_no_latency() -> None:
    answered, refused, health, _ = rows_of(
        replace(overloaded([(0.5, BROKEN, 5.0)] * 10), health=Health())
    )
    assert not (answered.met or refused.met or health.met)
    assert answered.measured == "0/s = 0%; none"
    assert answered.figures["count"] == 0
