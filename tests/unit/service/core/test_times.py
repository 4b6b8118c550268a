"""Times of RFC 3339: every one is shown again, and nothing else is read."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import times

ZONES = st.integers(-24 * 60 + 1, 24 * 60 - 1).map(lambda minutes: timedelta(minutes=minutes))


@given(st.integers(times.EARLIEST, times.LATEST), ZONES, st.booleans())
def test_every_time_is_shown_again(microseconds: int, offset: timedelta, small: bool) -> None:
    text = times.shown(microseconds)
    assert times.parse(text) == times.parse(text.lower()) == microseconds
    assert times.require(microseconds) == microseconds
    moment = datetime.fromisoformat(text)
    try:
        elsewhere = moment.astimezone(timezone(offset)).isoformat()
    except OverflowError:
        return  # not within the years 1 to 9999 there
    assert times.shown(times.parse(elsewhere.lower() if small else elsewhere)) == text


@given(st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", fullmatch=True))
def test_dates_that_do_not_exist_are_refused(text: str) -> None:
    try:
        expected = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            times.parse(text)
    else:
        assert times.shown(times.parse(text)) == text
        assert times.parse(text) == expected.timestamp() * times.SECOND


@given(st.text("-+:.TtZzW 0123456789", min_size=10), st.integers(0, 19), st.characters())
def test_only_the_grammar_of_rfc_3339_is_read(text: str, place: int, other: str) -> None:
    date = "2026-12-01T00:00:00Z"
    for one in (text, date[:place] + other + date[place + 1 :], date[:place] + date[place + 1 :]):
        try:
            times.parse(one)
        except ValueError:
            continue
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", one, re.ASCII
        )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1970-01-01T00:00:00.000001Z", "1970-01-01T00:00:00.000001Z"),
        ("2026-12-01t08:00:00.5+08:00", "2026-12-01T00:00:00.500000Z"),
        ("2026-12-01T00:00:00.123456789z", "2026-12-01T00:00:00.123456Z"),
        ("2026-12-01T00:00:00-00:00", "2026-12-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
        ("9999-12-31T23:59:59.999999-00:01", None),
        ("9999-12-31T23:59:59.999999+00:01", "9999-12-31T23:58:59.999999Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("0001-01-01T00:00:00+00:01", None),
        ("0000-12-31T23:59:00-00:01", None),
        ("2026-W49-2T00:00:00Z", None),
        ("20261201T000000Z", None),
        ("2026-12-01T00:00:00+01:00:30", None),
        ("2026-12-01T00:00:00+0100", None),
        ("2026-12-01T00:00:00+24:00", None),
        ("2026-12-01T00:00:00,5Z", None),
        ("2026-12-01T00:00:00.Z", None),
        ("2026-12-01T00:00:000Z", None),
        ("2026-12-01T24:00:00Z", None),
        ("2026-12-31T23:59:60Z", None),
        ("2026-12-01T00:00Z", None),
        ("2026-12-01 00:00:00Z", None),
        ("2026-12-01T00:00:00", None),
        ("2026-12-01T00:00:00Z\n", None),
        ("\u0662026-12-01T00:00:00Z", None),
    ],
)
def test_times(text: str, shown: str | None) -> None:
    if shown is None:
        with pytest.raises(ValueError, match=r"."):
            times.parse(text)
    else:
        assert times.shown(times.parse(text)) == shown


@pytest.mark.parametrize("wrong", [1.5, 1e15, True, "1", times.LATEST + 1, times.EARLIEST - 1])
def test_stored_times_are_integers_in_their_range(wrong: object) -> None:
    with pytest.raises(ValueError, match="no microseconds"):
        times.stored(wrong)
    assert times.stored(None) is None
