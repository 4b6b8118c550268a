"""A moment is a time or the number of an event."""

import pytest

from service.core.errors import InvalidInput
from training.datasets.learned.moment import Moment


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
