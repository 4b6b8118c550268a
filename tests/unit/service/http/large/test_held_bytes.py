"""What all requests hold together is bounded, and given back."""

import pytest
from prometheus_client import CollectorRegistry, Gauge

from service.core.errors import TooManyBytes
from service.http.large.held_bytes import HeldBytes


def test_all_requests_share_one_limit() -> None:
    held = HeldBytes(100)
    first, second = held.hold(), held.hold()
    first.add(60)
    with pytest.raises(TooManyBytes) as refused:
        second.add(41)
    assert refused.value.retry_after > 0
    second.add(40)
    assert first.crowded
    first.release()
    assert (held.total, first.size, first.crowded) == (40, 0, False)


def test_a_hold_changes_to_what_it_now_holds() -> None:
    held = HeldBytes(100)
    hold = held.hold()
    hold.add(80)
    hold.become(30)
    assert held.total == 30
    with pytest.raises(TooManyBytes):
        hold.become(101)
    assert held.total == 30
    hold.become(101, must=True)
    assert held.total == 101
    assert not hold.take(1)


def test_the_gauge_follows() -> None:
    registry = CollectorRegistry()
    held = HeldBytes(100, Gauge("held", "held", registry=registry))
    hold = held.hold()
    hold.count(150)
    assert registry.get_sample_value("held") == 150
    hold.release()
    assert registry.get_sample_value("held") == 0
