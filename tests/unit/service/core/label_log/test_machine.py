"""Signals that one process of a machine passes on to the others."""

import uuid
from contextlib import closing

import pytest

from service.core.label_log import machine

NEVER = 600.0  # seconds; longer than a test may take


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def listener_of(name: str) -> machine.Listener:
    listener = machine.claim(name)
    assert listener is not None
    return listener


def joined(name: str) -> machine.Follower:
    follower = machine.join(name)
    assert follower is not None
    return follower


def test_there_is_one_listener_of_a_name_at_a_time(name: str) -> None:
    listener = listener_of(name)
    assert machine.claim(name) is None
    listener_of(f"{name}-2").close()
    listener.close()
    listener_of(name).close()


def test_nobody_can_join_before_the_listener_is_open(name: str) -> None:
    assert machine.join(name) is None
    with closing(listener_of(name)) as listener:
        assert machine.join(name) is None
        listener.open()
        joined(name).close()


def test_the_newest_number_reaches_all_that_have_joined(name: str) -> None:
    with closing(listener_of(name)) as listener:
        listener.open()
        with closing(joined(name)) as first, closing(joined(name)) as second:
            listener.send(1)
            assert first.receive(seconds=NEVER) == 1
            for number in range(2, 6):
                listener.send(number)
            assert first.receive(seconds=NEVER) == 5
            assert second.receive(seconds=NEVER) == 5
            assert second.receive(seconds=0.01) is None


def test_the_end_of_the_listener_is_noticed_at_once(name: str) -> None:
    with closing(listener_of(name)) as listener:
        listener.open()
        follower, later = joined(name), joined(name)
        listener.send(7)
    assert follower.receive(seconds=NEVER) == 7  # what was sent before is not lost
    for one in (follower, later):
        with closing(one), pytest.raises(EOFError):
            while True:
                one.receive(seconds=NEVER)


def test_a_process_that_ended_or_hangs_holds_up_nobody(name: str) -> None:
    """One that hangs is disconnected: it joins again when it goes on, and reads the log."""
    with closing(listener_of(name)) as listener:
        listener.open()
        joined(name).close()
        with closing(joined(name)) as hanging:
            for number in range(10_000):
                listener.send(number)
            with closing(joined(name)) as quick:
                listener.send(10_000)
                assert quick.receive(seconds=NEVER) == 10_000
            with pytest.raises(EOFError):
                while True:
                    hanging.receive(seconds=NEVER)
