"""Old clicks weigh less than new ones, and a moment is a time or the number of an event."""

from collections.abc import Callable

import pytest

from service.command_line import run
from service.core.changes import Change
from service.core.errors import InvalidInput
from service.core.types import NewLabel
from tests.support.changes import click, put
from training.__main__ import app
from training.datasets.dataset import Dataset
from training.datasets.learned.history import History, Moment
from training.datasets.pair_weights import DAY, SMALLEST

Learn = Callable[..., Dataset]
Write = Callable[..., None]


@pytest.fixture
def write(history: Callable[..., History], monkeypatch: pytest.MonkeyPatch) -> Write:
    """`write(day, *changes)` appends changes to the log with the time of this day."""

    def written(day: float, *changes: Change) -> None:
        with monkeypatch.context() as clock:
            clock.setattr("service.core.label_log.rows.time.time", lambda: day * DAY)
            history(*changes)

    return written


def weights(dataset: Dataset, query: str) -> dict[str, float]:
    """Map the label ids of a training query to their weights."""
    row = dataset.train.labels_of[dataset.train.instances.texts.index(query)]
    ids = (dataset.labels.uids[column] for column in row.indices)
    return dict(zip(ids, row.data.tolist(), strict=True))


def test_a_click_counts_less_the_older_it_is_than_the_newest_event(
    write: Write, learn: Learn
) -> None:
    """20 and 10 days old, with a half-life of 10 days: 3 * 0.25 + 1 * 0.5 + 1, and 2 * 0.5."""
    write(100, click(1, "mud", "boots", weight=3.0))
    write(110, click(2, "mud", "boots"), click(3, "mud", "tent", weight=2.0))
    write(120, click(4, "mud", "boots"))
    assert weights(learn(half_life=10.0), "mud") == {"boots": 2.25, "tent": 1.0}
    assert weights(learn(), "mud") == {"boots": 5.0, "tent": 2.0}


def test_the_training_rows_and_posted_queries_keep_their_weights(
    write: Write, learn: Learn
) -> None:
    kayak = NewLabel(id="kayak", text="sea kayak", queries=("paddling",))
    write(0, put(1, kayak), click(2, "cook outdoors", "stove"))
    write(10, put(3, NewLabel(id="raft", text="raft")))
    learned = learn(half_life=10.0)
    assert weights(learned, "paddling") == {"kayak": 1.0}
    assert weights(learned, "cook outdoors") == {"stove": 1.5}


def test_a_click_of_long_ago_is_still_a_pair(write: Write, learn: Learn) -> None:
    write(0, click(1, "mud", "boots"))
    write(20_000, click(2, "rain", "boots"))
    assert weights(learn(half_life=1.0), "mud") == {"boots": SMALLEST}


@pytest.mark.parametrize("days", ["0", "-1", "inf", "nan"])
def test_a_half_life_is_a_positive_number_of_days(
    days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data", "log", "--bundle", "b", "--state", "s", "--out", "o", "--half-life", days]
    assert run(app, command) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the half-life must be a positive number of days")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1200", Moment(sequence=1200)),
        ("@12.5", Moment(seconds=12.5)),
        ("1970-01-02", Moment(seconds=86_400.0)),
        ("1970-01-01T01:00+01:00", Moment(seconds=0.0)),
    ],
)
def test_moments_are_read(text: str, moment: Moment) -> None:
    assert Moment.parse(text, option="--since") == moment


@pytest.mark.parametrize("text", ["yesterday", "@nan", "@", "", "-3"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=rf"--since must be a date.*not '{text}'"):
        Moment.parse(text, option="--since")
