"""Progress without a terminal: a plain line at once, then one about every ten seconds."""

import pytest

from training.progress import PlainLines


@pytest.fixture
def time() -> list[float]:
    """The current time, which tests set."""
    return [100.0]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def lines(said: list[str], time: list[float]) -> PlainLines:
    return PlainLines(said.append, clock=lambda: time[0])


def test_lines_say_share_and_time_left_every_ten_seconds(
    lines: PlainLines, said: list[str], time: list[float]
) -> None:
    for done in range(1, 41):
        lines("train", done, 40, "loss 0.5")
        time[0] += 1.0
    assert said == [
        "train: 1 of 40 (2 %), loss 0.5",
        "train: 11 of 40 (28 %), 29 s left, loss 0.5",
        "train: 21 of 40 (52 %), 19 s left, loss 0.5",
        "train: 31 of 40 (78 %), 9 s left, loss 0.5",
        "train: 40 of 40 (100 %), loss 0.5",
    ]


def test_another_stage_and_the_same_one_begun_anew_speak_at_once(
    lines: PlainLines, said: list[str]
) -> None:
    for stage, done in (("encode", 500), ("encode", 900), ("rank", 1), ("encode", 10)):
        lines(stage, done, 1000)
    assert said == [
        "encode: 500 of 1,000 (50 %)",
        "rank: 1 of 1,000 (0 %)",
        "encode: 10 of 1,000 (1 %)",
    ]


def test_long_times_are_said_in_minutes_and_hours(
    lines: PlainLines, said: list[str], time: list[float]
) -> None:
    lines("train", 0, 1000)
    for seconds in (100, 1000):
        time[0] += seconds
        lines("train", 10, 1000)
    left = [line.partition("), ")[2] for line in said[1:]]
    assert left == ["2 h 45 min left", "30 h 15 min left"]
