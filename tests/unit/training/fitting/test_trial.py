"""Trials are compared row by row; a later one must gain more than the comparison's error."""

from pathlib import Path

import numpy as np
import pytest

from service.command_line import open_console
from training.checkpoints.choices import UNCHOSEN
from training.fitting.trial import (
    Measured,
    Trial,
    as_facts,
    best_of,
    gain,
    joined,
    reason,
    reasons,
    table_of,
    verdict,
)


def trial(name: str, rows: np.ndarray, *, first: float | None = None) -> Trial:
    mean = 100 * float(rows.mean())
    metrics = dict.fromkeys(("P@1", "P@5", "R@100", "PSP@5"), mean)
    return Trial(
        name=name,
        summary="",
        folder=Path(name),
        choices=UNCHOSEN,
        metrics={**metrics, "P@1": mean if first is None else first},
        rows=np.repeat(rows[:, None], 3, axis=1),
        seconds=1.0,
    )


HALF = np.tile([0.0, 1.0], 50)


def test_a_gain_is_paired() -> None:
    better = np.where(np.arange(100) < 4, 1.0, HALF)  # two more correct rows
    measured = gain(trial("b", better), trial("a", HALF))
    assert measured.points == pytest.approx(2.0)
    differences = 100 * (better - HALF)
    assert measured.error == pytest.approx(differences.std(ddof=1) / 10)
    assert measured.counts


def test_the_same_mean_on_other_rows_is_no_gain() -> None:
    assert not gain(trial("b", 1.0 - HALF), trial("a", HALF)).counts


def test_the_best_is_kept_and_noise_is_not() -> None:
    untrained = trial("untrained", HALF)
    noise = trial("noise", np.random.default_rng(0).permutation(HALF))
    good = trial("good", np.where(np.arange(100) < 20, 1.0, HALF))
    assert best_of([untrained, noise]) is untrained
    assert best_of([untrained, noise, good]) is good
    assert best_of([untrained, good, noise]) is good
    assert verdict([untrained, noise], untrained).startswith("untrained is kept: no training")
    assert verdict([untrained, good], good).startswith("good is kept: it gains 10.0 ± ")
    facts = as_facts([untrained, noise, good], kept=good)
    assert [entry["gain"] for entry in facts] == [0.0, pytest.approx(0.0), pytest.approx(10.0)]
    whys = ["good is better", "gains less than its error", "kept"]
    assert [entry["why"] for entry in facts] == whys


def test_the_table_has_a_line_per_trial_and_the_reasons_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    untrained = trial("untrained", HALF)
    good = trial("quick-longer", np.where(np.arange(100) < 20, 1.0, HALF))
    open_console().print(table_of([untrained, good], kept=good))
    title, header, line, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "untrained" and second.split()[0] == "quick-longer"
    assert max(map(len, (title, header, line, first, second))) <= 80
    assert [said.rpartition("; ")[2] for said in reasons([untrained, good], kept=good)] == [
        "quick-longer is better",
        "kept",
    ]


def test_a_better_mean_with_a_worse_first_label_is_not_kept() -> None:
    untrained = trial("untrained", HALF)
    deep = trial("deep", np.where(np.arange(100) < 60, 1.0, HALF), first=49.0)
    assert best_of([untrained, deep]) is untrained
    assert reason(deep, [untrained, deep], untrained) == "P@1 is below untrained's"


def test_a_later_trial_must_gain_over_the_one_that_is_kept() -> None:
    untrained = trial("untrained", HALF)
    good = trial("good", np.where(np.arange(100) < 20, 1.0, HALF))
    again = trial("again", np.where(np.arange(100) < 21, 1.0, HALF))
    assert best_of([untrained, good, again]) is good
    assert reason(again, [untrained, good, again], good) == "over good within its error"


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
