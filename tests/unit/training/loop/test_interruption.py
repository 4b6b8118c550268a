"""A run notes a first signal and ends at a second one; two within a second count as one."""

import os
import signal

import pytest

from training.loop import interruption as module
from training.loop.interruption import Interrupted, Interruption


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, which tests set."""
    time = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: time[0])
    return time


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_the_first_signal_is_noted_and_a_later_one_ends_the_run(clock: list[float]) -> None:
    interruption = Interruption()
    with interruption.handled(), interruption.noted():
        send(signal.SIGINT)
        assert interruption.number == signal.SIGINT
        clock[0] += 1.5
        with pytest.raises(Interrupted) as raised:
            send(signal.SIGTERM)
    assert raised.value.status == 143


def test_signals_within_a_second_are_one(clock: list[float]) -> None:
    interruption = Interruption()
    with interruption.handled(), interruption.noted():
        send(signal.SIGINT)
        clock[0] += 0.5
        send(signal.SIGINT)
    assert interruption.number == signal.SIGINT


def test_outside_the_block_that_looks_at_it_a_signal_ends_the_run() -> None:
    interruption = Interruption()
    with interruption.handled(), pytest.raises(Interrupted) as raised:
        send(signal.SIGINT)
    assert (raised.value.status, str(raised.value)) == (130, "SIGINT")
