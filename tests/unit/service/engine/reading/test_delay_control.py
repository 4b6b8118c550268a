"""Overload is a queue that stands; a burst is not, and overload ends when nothing is refused."""

import pytest

from service.engine.reading.delay_control import DelayControl

TARGET, INTERVAL = 0.010, 0.100


class Clocked:
    """A control under a clock that the test moves."""

    def __init__(self) -> None:
        self.control = DelayControl(target=TARGET, interval=INTERVAL, floor=4)
        self.now = 100.0

    def serve(self, *, delay: float, seconds: float, per_second: float = 1_000) -> bool:
        """Take something every millisecond; says whether the queue is overloaded at the end."""
        for _ in range(round(seconds * 1000)):
            self.now += 0.001
            self.control.observe(delay, now=self.now, per_second=per_second)
        return self.control.overloaded


@pytest.fixture
def clocked() -> Clocked:
    return Clocked()


def test_a_queue_within_the_target_is_not_overloaded(clocked: Clocked) -> None:
    assert not clocked.serve(delay=0.009, seconds=1)


def test_a_queue_that_stands_for_an_interval_is_overloaded(clocked: Clocked) -> None:
    assert not clocked.serve(delay=0.020, seconds=0.09)
    assert clocked.serve(delay=0.020, seconds=0.03)


def test_one_short_delay_in_an_interval_tells_a_burst_from_a_standing_queue(
    clocked: Clocked,
) -> None:
    for _ in range(20):
        assert not clocked.serve(delay=0.080, seconds=0.08)
        assert not clocked.serve(delay=0.0, seconds=0.002)


def test_a_delay_of_a_whole_interval_is_overload_at_once(clocked: Clocked) -> None:
    assert clocked.serve(delay=0.101, seconds=0.001)


def test_overload_ends_with_an_interval_of_short_delays(clocked: Clocked) -> None:
    clocked.serve(delay=0.050, seconds=0.3)
    assert clocked.serve(delay=0.001, seconds=0.05)
    assert not clocked.serve(delay=0.001, seconds=0.2)


def test_overload_goes_on_while_something_is_refused(clocked: Clocked) -> None:
    clocked.serve(delay=0.050, seconds=0.3)
    for _ in range(20):
        clocked.control.refused = True
        assert clocked.serve(delay=0.001, seconds=0.05)
    assert not clocked.serve(delay=0.001, seconds=0.25)


def test_what_was_before_an_idle_time_does_not_count(clocked: Clocked) -> None:
    clocked.serve(delay=0.050, seconds=0.3)
    clocked.control.refused = True
    clocked.now += 10
    assert not clocked.serve(delay=0.0, seconds=0.001)


def test_as_much_may_wait_as_is_answered_within_the_target(clocked: Clocked) -> None:
    clocked.serve(delay=0, seconds=0.01, per_second=2_000)
    assert clocked.control.limit == 20
    clocked.serve(delay=0, seconds=0.01, per_second=100)
    assert clocked.control.limit == 4
    assert clocked.control.patience == 2 * TARGET
