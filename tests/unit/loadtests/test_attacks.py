"""The verdicts over rounds beside an attack."""

import pytest

from loadtests.attacks.__main__ import rows_of
from loadtests.attacks.rounds import Round
from loadtests.clients.open_loop import Outcome
from loadtests.measure.overload import Health


def measured(
    seconds: float, *, probe: float = 0.01, failures: dict[str, int] | None = None
) -> Round:
    return Round(
        outcome=Outcome(latencies=[seconds] * 100, late=[], failures=failures or {}),
        health=Health(seconds=[probe]),
        most_resident=400.0,
        first_after=0.01,
    )


@pytest.mark.parametrize(
    ("beside", "met"),
    [
        (measured(0.045), [True, True]),
        (measured(0.055), [False, True]),
        (measured(0.02, failures={"429": 3}), [True, True]),
        (measured(0.02, failures={"500": 1}), [False, True]),
        (measured(0.02, failures={"ConnectionResetError": 1}), [False, True]),
        (measured(0.02, probe=0.2), [True, False]),
    ],
)
def test_a_normal_client_keeps_its_latency_and_gets_no_error(
    beside: Round, met: list[bool]
) -> None:
    assert [row.met for row in rows_of("attack", measured(0.01), beside)] == met
