"""Prebuilt refusals have the details of each request."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from service.core.errors import DelayExceeded, KeymatchError, MalformedHttp, Overloaded
from service.http import problems
from service.http.access import Access, Sites
from service.http.middleware import MOST_ANSWERS, STRICT, Refusals
from service.settings import ServerSettings
from service.telemetry import Telemetry

SITE = b"https://shop.example"
SCOPE = {"type": "http", "headers": [(b"x-request-id", b"my-id")]}
BUSY = DelayExceeded("the service is overloaded", retry_after=1)
CROWDED = DelayExceeded("too many requests come in at once", retry_after=1)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def refusals(telemetry: Telemetry) -> Refusals:
    return Refusals(telemetry, Sites(ServerSettings(origins=(SITE.decode(),)), Access()))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the messages of refusals that are built and not reused."""
    messages: list[str] = []
    from_error: Callable[[Exception], Any] = problems.from_error

    def building(error: Exception) -> Any:
        messages.append(str(error))
        return from_error(error)

    monkeypatch.setattr(problems, "from_error", building)
    return messages


def answers(refusals: Refusals, *errors: KeymatchError, keep_alive: bool = True) -> list[bytes]:
    async def answer() -> list[bytes]:
        return [refusals.answer(SCOPE, error, keep_alive=keep_alive) for error in errors]

    return asyncio.run(answer())


def details(answered: list[bytes]) -> list[str]:
    return [orjson.loads(answer.partition(b"\r\n\r\n")[2])["detail"] for answer in answered]


def test_each_message_of_one_class_is_built_once(refusals: Refusals, built: list[str]) -> None:
    answered = answers(refusals, BUSY, CROWDED, BUSY, CROWDED)
    assert details(answered) == [str(BUSY), str(CROWDED)] * 2
    assert built == [str(BUSY), str(CROWDED)]


def test_a_bounded_number_of_answers_is_kept(refusals: Refusals, built: list[str]) -> None:
    errors = [Overloaded(f"{count} queries", retry_after=1) for count in range(MOST_ANSWERS + 1)]
    assert details(answers(refusals, *errors)) == [str(error) for error in errors]
    answers(refusals, errors[-1], errors[0])
    assert built == [str(error) for error in (*errors, errors[0])]  # the first was dropped


def test_an_answer_is_complete_http(refusals: Refusals) -> None:
    [answer] = answers(refusals, BUSY)
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert status == "HTTP/1.1 429 Too Many Requests"
    assert headers == {
        "content-length": str(len(body)),
        "content-type": problems.MEDIA_TYPE,
        "retry-after": "1",
        "x-request-id": "my-id",
        "vary": "origin",
        **{name.decode(): value.decode() for name, value in STRICT},
    }
    [last] = answers(refusals, BUSY, keep_alive=False)
    assert b"\r\nconnection: close\r\n\r\n" in last


def test_a_page_of_a_named_site_may_read_a_refusal(refusals: Refusals) -> None:
    async def answer(origin: bytes) -> bytes:
        scope = {"type": "http", "headers": [(b"origin", origin)]}
        return refusals.answer(scope, BUSY, keep_alive=True)

    allowed = b"\r\naccess-control-allow-origin: "
    assert allowed + SITE + b"\r\n" in asyncio.run(answer(SITE))
    assert allowed not in asyncio.run(answer(b"https://other.example"))


def test_refusals_are_counted_by_reason(refusals: Refusals, telemetry: Telemetry) -> None:
    async def malformed() -> None:
        refusals.last_answer(MalformedHttp("this is no HTTP"))

    answers(refusals, BUSY, CROWDED, Overloaded("9 queries are waiting", retry_after=1))
    asyncio.run(malformed())
    refusals.record()
    refusals.record()
    lines = telemetry.render().decode().splitlines()
    assert 'keymatch_rejected_total{reason="overloaded"} 2.0' in lines
    assert 'keymatch_rejected_total{reason="queue_full"} 1.0' in lines
    assert 'keymatch_rejected_total{reason="refused"} 1.0' in lines
    assert 'keymatch_requests_total{route="/predict",status="429"} 3.0' in lines
    assert 'keymatch_requests_total{route="unmatched",status="400"} 1.0' in lines
