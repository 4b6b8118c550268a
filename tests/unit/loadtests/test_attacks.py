"""The verdicts on measurements taken during and after an attack."""

from dataclasses import replace
from typing import Any

import pytest

from loadtests.attacks.__main__ import rows_of
from loadtests.attacks.rounds import Round, internal_errors
from loadtests.clients.open_loop import Outcome
from loadtests.traffic import Health


def measured(
    seconds: float = 0.01,
    *,
    probe: float = 0.01,
    failures: dict[str, int] | None = None,
    **changed: Any,
) -> Round:
    usual = Round(
        outcome=Outcome(latencies=[seconds] * 100, late=[], failures=failures or {}),
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


def test_a_quick_service_may_answer_its_first_request_within_twenty_milliseconds() -> None:
    *_, afterwards = rows_of("attack", measured(0.001), measured(0.001, first_after=0.019))
    assert afterwards.met


def test_only_answers_of_500_are_counted() -> None:
    series = 'keymatch_requests_total{{route="{}",status="{}"}} {}\n'
    metrics = (
        series.format("/predict", 500, "2.0")
        + series.format("/labels", 500, "1.0")
        + series.format("/predict", 503, "9.0")
        + 'keymatch_request_seconds_count{route="/predict"} 500.0\n'
    )
    assert internal_errors(metrics) == 3
