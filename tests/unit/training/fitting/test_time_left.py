"""How the time of `fit` is dealt out: shares, the shortest trial, and what the best one keeps."""

from dataclasses import replace

import pytest

from training.fitting.candidate import UNIDEC_CHOICES, Candidate
from training.fitting.candidates import WHOLE_ENCODINGS
from training.fitting.situation import LONGER, QUICK, QUICK_UNIDEC, SUPCON, WHOLE
from training.fitting.time_left import SHORTEST, Cost, TimeLeft

CHEAP = Cost(encode=1.0, choose=1.0)
DEAR = Cost(encode=90.0, choose=30.0)  # 160,000 texts on a slow core


def candidate(name: str, *, encodings: int = 1, choices: int = 1) -> Candidate:
    return Candidate(
        name=name, recipe="rae", summary="", settings=(), encodings=encodings, choices=choices
    )


WHOLE_ENCODER = candidate(WHOLE, encodings=WHOLE_ENCODINGS)
CLASSIFIERS = candidate(QUICK_UNIDEC, encodings=2, choices=UNIDEC_CHOICES)


def seconds(of: Candidate, left: float, cost: Cost) -> float:
    return TimeLeft(seconds=left, cost=cost).of(of)


def test_a_candidate_gets_its_share_without_what_it_does_beside_training() -> None:
    assert seconds(candidate(QUICK), 1000.0, CHEAP) == pytest.approx(0.08 * 1000 - 2)
    assert seconds(WHOLE_ENCODER, 1000.0, CHEAP) == pytest.approx(0.15 * 1000 - 3)


def test_a_share_that_is_too_short_becomes_the_shortest_time_if_enough_is_left() -> None:
    assert seconds(candidate(QUICK), 1058.0, DEAR) == pytest.approx(0.1 * 120)


def test_a_trial_that_is_nearly_all_encoding_is_left_out() -> None:
    """On moby, a trial once took 467 seconds of which it trained for five."""
    slow = Cost(encode=200.0, choose=15.0)
    assert seconds(candidate(QUICK, encodings=2), 1700.0, slow) == 0.0
    assert seconds(candidate(QUICK), 2100.0, slow) > SHORTEST


def test_classifiers_do_not_take_the_time_of_the_whole_encoder() -> None:
    assert seconds(CLASSIFIERS, 840.0, DEAR) == 0.0
    assert seconds(WHOLE_ENCODER, 840.0, DEAR) == pytest.approx(840 - 210)


def test_the_whole_encoder_does_not_take_time_that_others_use_better() -> None:
    """On a slow core it would encode and choose for 210 seconds, and train for 34."""
    assert seconds(WHOLE_ENCODER, 244.0, DEAR) == pytest.approx(244 - 210)
    replaceable = replace(WHOLE_ENCODER, replaceable=True)
    assert seconds(replaceable, 244.0, DEAR) == 0.0
    assert seconds(replaceable, 840.0, DEAR) == pytest.approx(840 - 210)


def test_without_time_for_the_whole_encoder_ngrams_are_tried_and_get_the_rest() -> None:
    assert seconds(WHOLE_ENCODER, 214.0, DEAR) == 0.0
    assert seconds(candidate(QUICK), 214.0, DEAR) == pytest.approx(0.1 * 120)
    assert seconds(candidate(LONGER), 214.0, DEAR) == pytest.approx(214 - 120)


@pytest.mark.parametrize("name", [QUICK, WHOLE, SUPCON, LONGER])
def test_nothing_is_tried_without_time(name: str) -> None:
    assert seconds(candidate(name), 100.0, DEAR) == 0.0
