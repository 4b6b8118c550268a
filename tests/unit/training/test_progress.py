"""Progress without a terminal: a plain line at once, then one about every ten seconds."""

from collections.abc import Iterable

from training.progress import PlainLines


def said(calls: Iterable[tuple[float, str, int]], *, total: int, note: str = "") -> list[str]:
    """Return the lines for calls of (seconds since the call before, stage, done)."""
    found: list[str] = []
    now = [100.0]
    lines = PlainLines(found.append, clock=lambda: now[0])
    for seconds, stage, done in calls:
        now[0] += seconds
        lines(stage, done, total, note)
    return found


def test_lines_say_share_and_time_left_every_ten_seconds() -> None:
    assert said([(1.0, "train", done) for done in range(1, 41)], total=40, note="loss 0.5") == [
        "train: 1 of 40 (2 %), loss 0.5",
        "train: 11 of 40 (28 %), 29 s left, loss 0.5",
        "train: 21 of 40 (52 %), 19 s left, loss 0.5",
        "train: 31 of 40 (78 %), 9 s left, loss 0.5",
        "train: 40 of 40 (100 %), loss 0.5",
    ]


def test_another_stage_and_the_same_one_begun_anew_speak_at_once() -> None:
    calls = [(0.0, "encode", 500), (0.0, "encode", 900), (0.0, "rank", 1), (0.0, "encode", 10)]
    assert said(calls, total=1000) == [
        "encode: 500 of 1,000 (50 %)",
        "rank: 1 of 1,000 (0 %)",
        "encode: 10 of 1,000 (1 %)",
    ]


def test_long_times_are_said_in_minutes_and_hours() -> None:
    calls = [(0.0, "train", 0), (100.0, "train", 10), (1000.0, "train", 10)]
    left = [line.partition("), ")[2] for line in said(calls, total=1000)[1:]]
    assert left == ["2 h 45 min left", "30 h 15 min left"]
