"""Times: integers of microseconds since 1970 in UTC, written as RFC 3339.

| text                            | microseconds           | shown as                          |
|---------------------------------|------------------------|-----------------------------------|
| `1970-01-01T00:00:01Z`          | 1,000,000              | `1970-01-01T00:00:01Z`            |
| `2026-12-01t08:00:00.5+08:00`   | 1,796,083,200,500,000  | `2026-12-01T00:00:00.500000Z`     |
| `9999-12-31T23:59:59.999999Z`   | `LATEST`               | the same                          |

Integers, because a float64 of seconds holds no microseconds after the year 2242.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import Annotated

from annotated_types import MaxLen
from pydantic import AfterValidator, ValidationInfo

from service.core.errors import DatePassed

SECOND = 1_000_000  # microseconds
NEVER = 2**31 - 1  # instead of the hour of a vote: its weight does not decay
# The grammar of RFC 3339, section 5.6; digits of a second after the sixth are cut off. A leap
# second (`:60`) has no place between these microseconds.
_RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2})(?:(\.[0-9]{1,6})[0-9]*)?"
    r"([Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_START = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
EARLIEST = (datetime.min.replace(tzinfo=UTC) - _START) // _MICROSECOND
LATEST = (datetime.max.replace(tzinfo=UTC) - _START) // _MICROSECOND


def parse(text: str) -> int:
    """Return a time of RFC 3339 in microseconds, cut off below.

    Raises `ValueError` unless it is one of the years 1 to 9999 in UTC.
    """
    written = _RFC_3339.fullmatch(text)
    if written is None:
        raise ValueError(f"{text!r} is no date and time with a zone, as in RFC 3339")
    moment, fraction, zone = written.groups(default="")
    local = datetime.fromisoformat(f"{moment}{fraction}{zone}".upper())
    found = (local.replace(tzinfo=None) - _START.replace(tzinfo=None)) // _MICROSECOND
    offset = local.utcoffset() or timedelta()
    return require(found - offset // _MICROSECOND)


def require(microseconds: object) -> int:
    """Return stored microseconds; raises `ValueError` unless they are of the years 1 to 9999."""
    if type(microseconds) is not int or not EARLIEST <= microseconds <= LATEST:
        raise ValueError(f"{microseconds!r} are no microseconds of the years 1 to 9999")
    return microseconds


def stored(microseconds: object) -> int | None:
    """Return a stored time, or None for none; raises `ValueError` as `require`."""
    return None if microseconds is None else require(microseconds)


def shown(microseconds: int) -> str:
    """Return microseconds as a time of RFC 3339 in UTC."""
    moment = _START + microseconds * _MICROSECOND
    return moment.isoformat().replace("+00:00", "Z")


def now() -> int:
    """Return the microseconds of this moment."""
    return time_ns() // 1_000


def read(text: str) -> int:
    """Return a date of a request in microseconds; raises `ValueError`, which says its form."""
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(
            "must be a date and time with a zone (RFC 3339) of the years 1 to 9999, such as"
            " 2026-12-01T00:00:00Z"
        ) from error


def start_of(text: str | None) -> int | None:
    """Return a date of a request in microseconds, None for none."""
    return read(text) if text else None


def end_of(text: str | None) -> int | None:
    """Return `expires_at` of a request in microseconds; raises `DatePassed`."""
    end = start_of(text)
    if end is not None and end <= now():
        raise DatePassed("has passed; delete what nobody may find", field="expires_at")
    return end


def _date(text: str) -> str:
    """Refuse a text that is no date and time with a zone."""
    read(text)
    return text


def _end(text: str, info: ValidationInfo) -> str:
    """Refuse what `_date` refuses, and a date that is not after the start."""
    end, start = read(text), start_of(info.data.get("starts_at"))
    if start is not None and end <= start:
        raise ValueError("must be after `starts_at`")
    return text


# The dates of a request's label or rule, and their descriptions.
Start = Annotated[str, MaxLen(40), AfterValidator(_date)]
End = Annotated[str, MaxLen(40), AfterValidator(_end)]
STARTS = (
    "The {0} before this time, in RFC 3339 with a zone, such as 2026-12-01T00:00:00Z. Default: it"
    " has no beginning."
)
EXPIRES = (
    "The {0} from this time on, in the same form; after `starts_at` and after now. Default: it has"
    " no end."
)
