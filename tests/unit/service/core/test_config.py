"""The error for an unknown name lists the known names and suggests a similar one."""

from service.core.config import is_unknown


def test_the_name_that_was_probably_meant_is_asked_for() -> None:
    assert (
        is_unknown("hots", ["host", "port"])
        == "is unknown; known are host, port; did you mean host?"
    )


def test_nothing_is_guessed_for_a_name_that_is_like_none() -> None:
    assert is_unknown("colour", ["host", "port"]) == "is unknown; known are host, port"
    assert is_unknown("host" * 1000, ["host"]) == "is unknown; known are host"
