"""The bucket of processor time: what it lets through over any time, and that it never runs dry."""

from hypothesis import given
from hypothesis import strategies as st

from service.engine.writing.processor_share import BURST_SECONDS, ProcessorShare


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# Pauses, and the processor seconds of the work that is then begun if any is left.
WORK = st.lists(st.tuples(st.floats(0, 2), st.floats(0.001, 0.1)), max_size=200)


@given(share=st.floats(0.01, 0.5), cores=st.integers(1, 64), work=WORK)
def test_work_takes_its_share_and_one_burst_at_most(share, cores, work) -> None:
    clock, start = Clock(), 100.0
    bucket, taken = ProcessorShare(share, cores=cores, clock=clock), 0.0
    longest = max((seconds for _, seconds in work), default=0.0)
    for pause, seconds in work:
        clock.now += pause
        if bucket.left:
            bucket.spend(seconds)
            taken += seconds
        allowed = share * cores * (BURST_SECONDS + clock.now - start)
        assert taken <= allowed + longest + 1e-9


@given(share=st.floats(0.01, 0.5), spent=st.floats(0, 10))
def test_work_goes_on_after_a_pause(share, spent) -> None:
    clock = Clock()
    bucket = ProcessorShare(share, cores=2, clock=clock)
    bucket.spend(spent)
    clock.now += spent / (share * 2) + 0.001
    assert bucket.left


def test_by_hand() -> None:
    clock = Clock()
    bucket = ProcessorShare(0.25, cores=2, clock=clock)  # half a second each second
    assert bucket.left
    bucket.spend(1.0)  # of the 0.5 that it held
    assert not bucket.left
    clock.now += 0.9
    assert not bucket.left
    clock.now += 0.2
    assert bucket.left
