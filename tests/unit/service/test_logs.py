"""Log lines: JSON, one event a line, whatever happens."""

import logging
import sys

import orjson

from service.logs import JsonLines


def line(message: str = "hello", exc_info: object = None, **extra: object) -> dict[str, object]:
    logger = logging.getLogger("keymatch.test")
    record = logger.makeRecord(
        "keymatch.test", logging.INFO, "file", 1, message, (), exc_info, extra=extra
    )
    text = JsonLines().format(record)
    assert "\n" not in text
    return orjson.loads(text)


def test_a_line_holds_time_level_message_and_extras() -> None:
    found = line(version=3, rows=[1, 2])
    assert found.pop("time")
    assert found == {"level": "info", "message": "hello", "version": 3, "rows": [1, 2]}


def test_a_traceback_is_one_field() -> None:
    try:
        raise RuntimeError("broken\nin two")
    except RuntimeError:
        found = line(exc_info=sys.exc_info())
    assert "RuntimeError: broken\nin two" in str(found["trace"])


def test_odd_values_are_written_as_text() -> None:
    assert line(path=object)["path"] == str(object)
    assert line("a\nb\u2028c")["message"] == "a\nb\u2028c"
