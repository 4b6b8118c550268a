"""How `fit` divides its time: shares, the shortest trial, and the time of the best candidate."""

import signal
import threading
import time
from dataclasses import replace

import pytest

from training.fitting.candidates import (
    LONGER,
    QUICK,
    QUICK_UNIDEC,
    SUPCON,
    UNIDEC_CHOICES,
    WHOLE,
    WHOLE_ENCODINGS,
    Candidate,
)
from training.fitting.time_left import SHORTEST, Cost, OutOfTime, deadline
from training.fitting.time_left import training_seconds as seconds

CHEAP = Cost(encode=1.0, choose=1.0)
DEAR = Cost(encode=90.0, choose=30.0)  # for 160,000 texts on a slow core


def candidate(name: str, *, encodings: int = 1, choices: int = 1) -> Candidate:
    return Candidate(
        name=name, recipe="rae", summary="", settings=(), encodings=encodings, choices=choices
    )


WHOLE_ENCODER = candidate(WHOLE, encodings=WHOLE_ENCODINGS)
CLASSIFIERS = candidate(QUICK_UNIDEC, encodings=2, choices=UNIDEC_CHOICES)


REPLACEABLE = replace(WHOLE_ENCODER, replaceable=True)
OPENED = replace(CHEAP, opening=4.0, extra=6.0)
SLOW = Cost(encode=200.0, choose=15.0)
# A candidate, the seconds that are left, what work beside training costs, and its seconds.
SHARES = {
    "a share less the time beside training": (candidate(QUICK), 1000.0, CHEAP, 0.08 * 1000 - 2),
    "opening and extra time count": (candidate(QUICK), 1000.0, OPENED, 0.08 * 1000 - 12),
    "the whole encoder has a larger share": (WHOLE_ENCODER, 1000.0, CHEAP, 0.15 * 1000 - 3),
    "more than a share that is too short": (candidate(QUICK), 1058.0, DEAR, 0.1 * 120),
    # On moby, a trial once took 467 seconds but trained for only five.
    "a trial would nearly all be encoding": (candidate(QUICK, encodings=2), 1700.0, SLOW, 0.0),
    "classifiers leave time to the encoder": (CLASSIFIERS, 840.0, DEAR, 0.0),
    "the whole encoder takes it": (WHOLE_ENCODER, 840.0, DEAR, 840 - 210),
    "it takes the rest": (WHOLE_ENCODER, 244.0, DEAR, 244 - 210),
    "others use a short rest better": (REPLACEABLE, 244.0, DEAR, 0.0),
    "a long rest is the whole encoder's": (REPLACEABLE, 840.0, DEAR, 840 - 210),
    "no time for the whole encoder": (WHOLE_ENCODER, 214.0, DEAR, 0.0),
    "ngrams are tried instead": (candidate(QUICK), 214.0, DEAR, 0.1 * 120),
    "ngrams get the rest": (candidate(LONGER), 214.0, DEAR, 214 - 120),
    **{
        f"no time for {name}": (candidate(name), 100.0, DEAR, 0.0)
        for name in (QUICK, WHOLE, SUPCON, LONGER)
    },
}


@pytest.mark.parametrize(("tried", "left", "cost", "expected"), SHARES.values(), ids=SHARES)
def test_the_seconds_of_a_candidate(
    tried: Candidate, left: float, cost: Cost, expected: float
) -> None:
    assert seconds(tried, left, cost) == pytest.approx(expected)


def test_a_trial_is_not_too_short_and_closing_takes_time() -> None:
    assert seconds(candidate(QUICK), 2100.0, SLOW) > SHORTEST
    assert OPENED.closing(1, 1) == pytest.approx(8.0)


def test_a_deadline_ends_its_block() -> None:
    began = time.monotonic()
    with pytest.raises(OutOfTime), deadline(0.05):
        time.sleep(10)
    assert time.monotonic() - began < 5
    with pytest.raises(OutOfTime), deadline(0.0):
        pytest.fail("the block was begun")


def test_after_the_block_nothing_happens_and_an_earlier_alarm_goes_on() -> None:
    rung: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with deadline(0.2):
            pass
        time.sleep(0.25)
        assert not rung
        time.sleep(0.15)
        assert rung == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left, interval)  # restores pytest's own timeout


def test_outside_the_main_thread_there_is_no_alarm() -> None:
    done: list[bool] = []

    def block() -> None:
        with deadline(0.01):
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert done == [True]
