"""Answers are kept under idempotency keys, in the same transaction as the write."""

from contextlib import closing

import pytest

from service.core.errors import LogError
from service.core.label_log import AnsweredRequest, LabelLog, appending
from tests.support.label_logs import Place, event


def request(key: str, *, digest: str = "d") -> AnsweredRequest:
    answer = {"labels": [{"id": key, "text": "größer ✓"}], "version": 7}
    return AnsweredRequest(key=key, digest=digest, version=7, answer=answer)


def remember(log: LabelLog, *keys: str) -> None:
    for key in keys:
        with log.exclusive() as within:
            within.remember(request(key))


def answered(log: LabelLog, key: str) -> AnsweredRequest | None:
    with log.exclusive() as within:
        return within.answered(key)


def test_an_answer_is_found_under_its_key_after_a_restart(place: Place) -> None:
    with closing(place.open()) as log:
        assert answered(log, "a") is None
        remember(log, "a", "b")
    with closing(place.open()) as log:
        assert answered(log, "a") == request("a")
        assert answered(log, "b") == request("b")
        assert answered(log, "A") is None


def test_an_answer_is_kept_with_its_write_or_not_at_all(log: LabelLog) -> None:
    with pytest.raises(ZeroDivisionError), log.exclusive() as within:
        within.append([event("a")], encoder="e")
        within.remember(request("a"))
        assert within.answered("a") == request("a")
        raise ZeroDivisionError
    assert answered(log, "a") is None
    assert log.last_sequence() == 0


def test_a_key_cannot_be_used_twice_within_a_day(log: LabelLog) -> None:
    remember(log, "a")
    with pytest.raises(LogError, match="cannot be written"), log.exclusive() as within:
        within.append([event("a")], encoder="e")
        within.remember(request("a", digest="another"))
    assert answered(log, "a") == request("a")
    assert log.last_sequence() == 0


def age(place: Place, key: str, *, hours: float) -> None:
    place.tamper(
        "UPDATE requests SET written = written - :seconds WHERE key = :key",
        seconds=hours * 3600,
        key=key,
    )


def test_a_key_may_be_used_again_after_a_day(place: Place, log: LabelLog) -> None:
    remember(log, "young", "old")
    age(place, "young", hours=23.9)
    age(place, "old", hours=24.1)
    assert answered(log, "young") == request("young")
    assert answered(log, "old") is None
    remember(log, "old")
    assert answered(log, "old") == request("old")


def test_expired_keys_are_deleted_a_few_at_a_time(
    place: Place, log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appending, "FORGOTTEN_AT_ONCE", 2)
    remember(log, "a", "b", "c", "d")
    for key, hours in (("a", 30), ("b", 26), ("c", 27), ("d", 28)):
        age(place, key, hours=hours)
    remember(log, "e")
    left = "SELECT key FROM requests ORDER BY key"
    assert place.tamper(left) == [("b",), ("c",), ("e",)]  # the oldest went first
    remember(log, "b")
    assert place.tamper(left) == [("b",), ("e",)]
