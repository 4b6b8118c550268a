"""Trials are compared row by row; a later one must gain more than the comparison's error.

Scales of the vote weights are trials, too.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.command_line import open_console
from training.checkpoints.choices import UNCHOSEN
from training.evaluation.known_queries import FIRST, IN_TEN, KnownQueries
from training.evaluation.prediction import OfflineMemory, retrieve
from training.fitting.trial import (
    Measured,
    Trial,
    as_facts,
    best_of,
    best_relevance,
    chosen_with,
    gain,
    joined,
    measure,
    reason,
    reasons,
    table_of,
    verdict,
    weight_lines,
    weight_trials,
)
from training.selection.validation import HeldOutRetrieval


def trial(
    name: str, rows: np.ndarray, *, first: float | None = None, known: float = 100.0
) -> Trial:
    mean = 100 * float(rows.mean())
    metrics = dict.fromkeys(("P@1", "P@5", "R@100", "PSP@5"), mean)
    return Trial(
        name=name,
        summary="",
        folder=Path(name),
        choices=UNCHOSEN,
        metrics={**metrics, "P@1": mean if first is None else first, FIRST: known, IN_TEN: 100.0},
        rows=np.repeat(rows[:, None], 3, axis=1),
        seconds=1.0,
    )


HALF = np.tile([0.0, 1.0], 50)
UNTRAINED, GOOD = trial("untrained", HALF), trial("good", np.where(np.arange(100) < 20, 1.0, HALF))


def test_what_answers_known_queries_worse_is_not_kept() -> None:
    harmful = replace(GOOD, name="harmful", metrics={**GOOD.metrics, FIRST: 99.4})
    assert best_of([UNTRAINED, harmful]) is UNTRAINED
    assert reason(harmful, [UNTRAINED, harmful], UNTRAINED) == (
        "known queries are answered worse than by untrained"
    )
    within = replace(GOOD, metrics={**GOOD.metrics, FIRST: 99.5})
    assert best_of([UNTRAINED, within]) is within


def test_a_gain_is_paired() -> None:
    better = np.where(np.arange(100) < 4, 1.0, HALF)  # two more correct rows
    measured = gain(trial("b", better), trial("a", HALF))
    assert measured.points == pytest.approx(2.0)
    differences = 100 * (better - HALF)
    assert measured.error == pytest.approx(differences.std(ddof=1) / 10)
    assert measured.counts
    assert not gain(trial("b", 1.0 - HALF), trial("a", HALF)).counts, "the same mean on other rows"


def test_the_best_is_kept_and_noise_is_not() -> None:
    noise = trial("noise", np.random.default_rng(0).permutation(HALF))
    assert best_of([UNTRAINED, noise]) is UNTRAINED
    assert best_of([UNTRAINED, noise, GOOD]) is GOOD
    assert best_of([UNTRAINED, GOOD, noise]) is GOOD
    assert verdict([UNTRAINED, noise], UNTRAINED).startswith("untrained is kept: no training")
    assert verdict([UNTRAINED, GOOD], GOOD).startswith("good is kept: it gains 10.0 ± ")
    facts = as_facts([UNTRAINED, noise, GOOD], kept=GOOD)
    assert [entry["gain"] for entry in facts] == [0.0, pytest.approx(0.0), pytest.approx(10.0)]
    whys = ["good is better", "gains less than its error", "kept"]
    assert [entry["why"] for entry in facts] == whys


def test_the_table_has_a_line_per_trial_and_the_reasons_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tried = [UNTRAINED, replace(GOOD, name="quick-longer")]
    open_console().print(table_of(tried, kept=tried[1]))
    title, header, line, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "untrained" and second.split()[0] == "quick-longer"
    assert max(map(len, (title, header, line, first, second))) <= 80
    said = [reason.rpartition("; ")[2] for reason in reasons(tried, kept=tried[1])]
    assert said == ["quick-longer is better", "kept"]


def test_a_later_trial_must_gain_over_the_one_that_is_kept_without_losing_p1() -> None:
    deep = trial("deep", np.where(np.arange(100) < 60, 1.0, HALF), first=49.0)
    assert best_of([UNTRAINED, deep]) is UNTRAINED
    assert reason(deep, [UNTRAINED, deep], UNTRAINED) == "P@1 is below untrained's"
    again = trial("again", np.where(np.arange(100) < 21, 1.0, HALF))
    assert best_of([UNTRAINED, GOOD, again]) is GOOD
    assert reason(again, [UNTRAINED, GOOD, again], GOOD) == "over good within its error"


def test_a_row_that_two_splits_hold_out_counts_once() -> None:
    rows = np.repeat(np.array([1.0, 0.0, 1.0])[:, None], 3, axis=1)
    first = Measured(
        choices=UNCHOSEN, metrics={"P@1": 66.0}, rows=rows, numbers=np.array([4, 7, 9])
    )
    second = Measured(
        choices=UNCHOSEN, metrics={"P@1": 33.0}, rows=1.0 - rows, numbers=np.array([7, 8, 9])
    )
    trial = joined([first, second], name="a", summary="", folder=Path("a"), seconds=1.0)
    assert trial.rows[:, 0].tolist() == [1.0, 0.0, 1.0, 0.5]  # of the rows 4, 7, 8 and 9
    assert trial.metrics == {"P@1": 49.5}


CHOICES = replace(UNCHOSEN, memorization=1.0, depth=2)
QUERIES = 12


def held_out(*, weight: float, harm: bool = False) -> HeldOutRetrieval:
    """Return two equally near instances; both vote for the right label 0, one also for label 1.

    With `harm`, equal votes harm known queries: the one with both labels has more clicks on 1.
    """
    right, none = csr_matrix(np.tile([1.0, 0.0], (2, 1))), csr_matrix((2, 2), dtype=bool)
    memory = OfflineMemory(
        keys=np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], np.float16),
        labels_of=csr_matrix(np.array([[1.0, weight], [1.0, 0.0]], np.float32)),
        label_ids=("right", "wrong"),
    )
    queries = np.tile(np.array([[1.0, 0.0]], np.float32), (QUERIES, 1))
    return HeldOutRetrieval(
        rows_of_training=np.arange(2, 2 + QUERIES),
        memory=memory,
        retrieved=retrieve(memory, queries, depth=2),
        positives=csr_matrix(np.tile([1.0, 0.0], (QUERIES, 1))),
        filtered=csr_matrix((QUERIES, 2), dtype=bool),
        inverse_propensities=np.ones(2),
        known=KnownQueries.of_rows(memory.labels_of if harm else right, none),
    )


@pytest.mark.parametrize(
    ("weight", "best", "said"), [(100.0, "binary", 2), (0.5, "given", 1), (1.0, None, 0)]
)
def test_misleading_weights_are_told(weight: float, best: str | None, said: int) -> None:
    """Binary votes are 1 + 1 for label 0 and 1 for label 1; weighted ones are 0.02 + 1 and 1.98."""
    split = held_out(weight=weight)
    trials = weight_trials([split], [measure(split, CHOICES)])
    lines = list(weight_lines(trials))
    assert (best_relevance(trials), len(lines)) == (best, said)
    if best != "binary":
        return
    compared, advice = lines
    assert compared.startswith("weights of the memory's votes, mean on the held-out rows: given ")
    assert advice.startswith("binary gains ")
    assert advice.endswith(
        "the memory of what is kept votes with relevance binary"
        " (`export bundle --relevance given` overrules it)"
    )


def test_equal_votes_are_not_kept_if_they_harm_known_queries() -> None:
    split = held_out(weight=100.0, harm=True)
    trials = weight_trials([split], [measure(split, CHOICES)])
    known = {trial.name: trial.metrics[FIRST] for trial in trials}
    assert known["given"] > 90 and known["binary"] < 10
    assert best_relevance(trials) == "given"


def test_settings_are_chosen_for_the_votes_that_are_kept() -> None:
    split = held_out(weight=100.0)
    given = measure(split, CHOICES)
    binary = chosen_with("binary", split, given)
    assert binary.choices.relevance == "binary"
    assert binary.metrics["P@1"] > given.metrics["P@1"]
    kept = chosen_with("given", split, given)
    assert kept.choices == replace(CHOICES, relevance="given")
    assert kept.metrics == given.metrics
