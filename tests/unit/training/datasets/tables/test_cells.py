"""Times in their many forms; texts and weights are tested with the tables that hold them."""

from datetime import UTC, date, datetime

import pytest

from training.datasets.tables import cells

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "value",
    [
        NOON,
        int(NOON),
        f"{NOON}",
        f" {int(NOON)} ",
        "2024-05-01T12:00:00Z",
        "2024-05-01 12:00:00",
        "2024-05-01 12:00:00 UTC",
        "2024-05-01T14:00:00+02:00",
        "20240501T120000",
        datetime(2024, 5, 1, 12),
        datetime(2024, 5, 1, 12, tzinfo=UTC),
    ],
)
def test_a_time(value: object) -> None:
    assert cells.time(value) == NOON


def test_a_date_is_its_beginning() -> None:
    assert cells.time("2024-05-01") == cells.time(date(2024, 5, 1)) == NOON - 12 * 3600


@pytest.mark.parametrize("value", ["", "yesterday", None, True, "nan", -1, 1.7e12, "01/05/2024"])
def test_no_time(value: object) -> None:
    with pytest.raises(ValueError, match="is no time: neither Unix seconds nor ISO 8601"):
        cells.time(value)
