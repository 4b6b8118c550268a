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


def test_a_candidate_gets_its_share_without_what_it_does_beside_training() -> None:
    assert seconds(candidate(QUICK), 1000.0, CHEAP) == pytest.approx(0.08 * 1000 - 2)
    assert seconds(WHOLE_ENCODER, 1000.0, CHEAP) == pytest.approx(0.15 * 1000 - 3)
    shortest = seconds(candidate(QUICK), 1058.0, DEAR)
    assert shortest == pytest.approx(0.1 * 120), "the share is too short, but enough is left"


def test_a_trial_that_is_nearly_all_encoding_is_left_out() -> None:
    """On moby, a trial once took 467 seconds but trained for only five."""
    slow = Cost(encode=200.0, choose=15.0)
    assert seconds(candidate(QUICK, encodings=2), 1700.0, slow) == 0.0
    assert seconds(candidate(QUICK), 2100.0, slow) > SHORTEST


def test_classifiers_do_not_take_the_time_of_the_whole_encoder() -> None:
    assert seconds(CLASSIFIERS, 840.0, DEAR) == 0.0
    assert seconds(WHOLE_ENCODER, 840.0, DEAR) == pytest.approx(840 - 210)


def test_the_whole_encoder_does_not_take_time_that_others_use_better() -> None:
    """On a slow core it would encode and choose for 210 seconds and train for only 34."""
    assert seconds(WHOLE_ENCODER, 244.0, DEAR) == pytest.approx(244 - 210)
    replaceable = replace(WHOLE_ENCODER, replaceable=True)
    assert seconds(replaceable, 244.0, DEAR) == 0.0
    assert seconds(replaceable, 840.0, DEAR) == pytest.approx(840 - 210)


def test_without_time_for_the_whole_encoder_ngrams_are_tried_and_get_the_rest() -> None:
    assert seconds(WHOLE_ENCODER, 214.0, DEAR) == 0.0
    assert seconds(candidate(QUICK), 214.0, DEAR) == pytest.approx(0.1 * 120)
    assert seconds(candidate(LONGER), 214.0, DEAR) == pytest.approx(214 - 120)
    for name in (QUICK, WHOLE, SUPCON, LONGER):
        assert seconds(candidate(name), 100.0, DEAR) == 0.0


def test_what_opening_took_and_what_was_not_foreseen_is_time_beside_training() -> None:
    slow = replace(CHEAP, opening=4.0, extra=6.0)
    assert slow.closing(1, 1) == pytest.approx(8.0)
    assert seconds(candidate(QUICK), 1000.0, slow) == pytest.approx(0.08 * 1000 - 12)


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
