"""A stream of labels: every line answered once and in order, also when it ends badly."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.errors import LogError, MemoryFull, NotReady, Overloaded
from service.core.types import NewLabel
from service.engine.write_operations import Written, WrittenLabel
from service.http.answers import LineAnswer, LineRefusal, StreamEnd
from service.http.request_models import RequestModels
from service.http.streaming import batch_queue, label_stream
from service.http.streaming.label_stream import BATCH_LINES, LabelStream
from service.settings import Limits
from service.telemetry import Telemetry
from tests.support.answers import assert_answer

LEAVES = None  # in place of bytes: the client goes away
HANGS = b"hangs"  # in place of bytes: the client neither sends nor goes away


class Desk:
    """Applies labels as the engine does, and remembers the calls; `fails` names failing calls."""

    def __init__(self, fails: dict[int, Exception] | None = None) -> None:
        self.fails = fails or {}
        self.calls: list[list[NewLabel]] = []
        self.applied: list[NewLabel] = []
        self.running = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def apply(self, labels: Sequence[NewLabel]) -> Written:
        assert not self.running, "one batch at a time"
        self.calls.append(list(labels))
        self.running += 1
        try:
            await self.go_on.wait()
            await asyncio.sleep(0)
            if error := self.fails.get(len(self.calls)):
                raise error
        finally:
            self.running -= 1
        self.applied += labels
        fates = tuple(WrittenLabel(id=label.id, status="created") for label in labels)
        return Written(version=len(self.applied), labels=fates)


class Client:
    """Sends chunks as the stream receives them, and keeps what it answers."""

    def __init__(self, chunks: Iterable[bytes | None]) -> None:
        self._chunks = iter(chunks)
        self.asked = 0
        self.messages: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def receive(self) -> dict[str, Any]:
        self.asked += 1
        await asyncio.sleep(0)
        chunk = next(self._chunks, b"")
        if chunk is LEAVES:
            return {"type": "http.disconnect"}
        if chunk is HANGS:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunk, "more_body": bool(chunk)}

    async def send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        self.messages.append(message)

    @property
    def answers(self) -> list[dict[str, Any]]:
        content = b"".join(message.get("body", b"") for message in self.messages)
        return [orjson.loads(line) for line in content.splitlines()]

    @property
    def ended(self) -> bool:
        return bool(self.messages) and self.messages[-1].get("more_body") is False


def stream(
    desk: Desk,
    client: Client,
    *,
    draining: Callable[[], bool] = lambda: False,
    telemetry: Telemetry | None = None,
    patience: float = 60,
    **limits: int,
) -> Awaitable[None]:
    under = Limits(**limits)
    answer = LabelStream(
        model=RequestModels(under).label,
        apply=desk.apply,
        draining=draining,
        limits=under,
        telemetry=telemetry or Telemetry(),
        patience=patience,
    )
    return answer({"type": "http", "headers": []}, client.receive, client.send)


def put(
    chunks: Iterable[bytes | None], fails: dict[int, Exception] | None = None, **how: Any
) -> tuple[Desk, Client]:
    """Stream chunks to the end."""

    async def run() -> tuple[Desk, Client]:
        desk, client = Desk(fails), Client(chunks)
        await stream(desk, client, **how)
        return desk, client

    return asyncio.run(run())


def good(*texts: str) -> bytes:
    return b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts)


def many(count: int) -> bytes:
    return good(*(f"label {number}" for number in range(1, count + 1)))


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_stream, "LINGER_SECONDS", 0.01)


def test_each_line_is_answered() -> None:
    desk, client = put([b'{"id": "pm-1", "text": "password manager", "queries": ["bitwarden"]}'])
    assert desk.applied == [NewLabel(id="pm-1", text="password manager", queries=("bitwarden",))]
    [answer] = client.answers
    assert answer == {
        "line": 1, "id": "pm-1", "status": "created", "version": 1, "neighbours": []
    }  # fmt: skip
    assert_answer(answer, LineAnswer)
    start = client.messages[0]
    assert start["status"] == 200
    assert dict(start["headers"]) == {
        b"content-type": b"application/x-ndjson",
        b"connection": b"close",
    }
    assert client.ended


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_stream_has_an_empty_answer(content: bytes) -> None:
    desk, client = put([content])
    assert (desk.calls, client.answers, client.ended) == ([], [], True)


@pytest.mark.parametrize(
    ("line", "status", "field"),
    [
        (b"{", 400, None),
        (b'{"text": "\xff"}', 400, None),
        (b"[" * 5000, 400, None),
        (b'{"text": NaN}', 400, None),
        (b'{"text": "a"} {"text": "b"}', 400, None),
        (b'"text"', 422, "line"),
        (b"{}", 422, "text"),
        (b'{"text": " "}', 422, "text"),
        (b'{"text": 3}', 422, "text"),
        (b'{"labels": []}', 422, "labels"),
        (b'{"text": "a", "queries": ["b", ""]}', 422, "queries.1"),
        (b'{"text": "' + b"x" * 10_000 + b'"}', 413, None),
    ],
)
def test_a_bad_line_is_answered_by_its_own_problem(
    line: bytes, status: int, field: str | None
) -> None:
    desk, client = put([good("a") + line + b"\r\n" + good("b")], body_bytes=10_000)
    assert [label.id for label in desk.applied] == ["a", "b"]
    first, refusal, last = client.answers
    assert (first["id"], last["id"], last["line"]) == ("a", "b", 3)
    assert_answer(refusal, LineRefusal)
    assert (refusal["line"], refusal["error"]["status"]) == (2, status)
    fields = [one["field"] for one in refusal["error"].get("errors", [])]
    assert field in fields if field else not fields


@given(data=st.data(), kinds=st.lists(st.sampled_from(["good", "bad", "blank"]), max_size=700))
def test_any_mix_of_lines_is_answered_in_order(data: st.DataObject, kinds: list[str]) -> None:
    shown = {"bad": b"{", "blank": b" "}
    content = b"\n".join(shown.get(kind, good(f"{n}").rstrip()) for n, kind in enumerate(kinds, 1))
    size = data.draw(st.integers(1, len(content) + 1))
    desk, client = put(content[start : start + size] for start in range(0, len(content), size))
    numbered = list(enumerate(kinds, 1))
    assert [label.text for label in desk.applied] == [
        str(number) for number, kind in numbered if kind == "good"
    ]
    assert [(answer["line"], "error" in answer) for answer in client.answers] == [
        (number, kind == "bad") for number, kind in numbered if kind != "blank"
    ]


def test_an_id_may_come_again_in_one_batch() -> None:
    desk, client = put([b'{"id": "a", "text": "b"}\n{"id": "a", "text": "c"}\n'])
    assert [[label.text for label in call] for call in desk.calls] == [["b", "c"]]
    assert [answer["id"] for answer in client.answers] == ["a", "a"]


def test_batches_are_full_while_lines_come_fast() -> None:
    desk, client = put([many(1000)])
    assert [len(call) for call in desk.calls] == [256, 256, 256, 232]
    assert [answer["line"] for answer in client.answers] == list(range(1, 1001))
    assert [answer["version"] for answer in client.answers[255:257]] == [256, 512]


def test_a_batch_is_full_once_it_has_the_bytes_of_a_body() -> None:
    desk, _ = put([good(*"abcdef")], body_bytes=2 * len(good("a").rstrip()))
    assert [len(call) for call in desk.calls] == [2, 2, 2]


def test_the_answer_to_a_line_comes_before_the_next_line() -> None:
    async def run() -> None:
        client = Client([])

        async def receive() -> dict[str, Any]:
            sent = client.asked
            while len(client.answers) < sent:
                await asyncio.sleep(0.001)
            client.asked += 1
            more = client.asked <= 5
            return {"type": "http.request", "body": good("a") * more, "more_body": more}

        client.receive = receive  # type: ignore[method-assign]
        desk = Desk()
        await stream(desk, client)
        assert [len(call) for call in desk.calls] == [1] * 5

    asyncio.run(run())


def test_lines_that_trickle_in_do_not_keep_the_first_one_waiting() -> None:
    async def run() -> None:
        client = Client([])

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.005)
            client.asked += 1
            more = not client.answers
            assert client.asked < BATCH_LINES
            return {"type": "http.request", "body": good("a") * more, "more_body": more}

        client.receive = receive  # type: ignore[method-assign]
        await stream(Desk(), client)

    asyncio.run(run())


def test_a_full_queue_means_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_stream, "RETRY_SECONDS", 0)
    full = Overloaded("full", retry_after=1)
    telemetry = Telemetry()
    desk, client = put([many(600)], {1: full, 2: full, 4: full}, telemetry=telemetry)
    assert [len(call) for call in desk.calls] == [256, 256, 256, 256, 256, 88]
    assert [label.text for label in desk.applied] == [f"label {n}" for n in range(1, 601)]
    assert all(answer["status"] == "created" for answer in client.answers)
    assert b'rejected_total{reason="queue_full"} 0.0' in telemetry.render()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryFull("full"), 507),
        (LogError("/disk"), 503),
        (NotReady("the writer has stopped"), 503),
        (RuntimeError("a defect"), 500),
    ],
)
def test_nothing_behind_a_failed_batch_is_applied(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    monkeypatch.setattr(batch_queue, "BATCH_SECONDS", 60)  # full batches, also on a busy machine
    content = many(300) + b"{\n" + many(600)
    desk, client = put([content[:9000], content[9000:]], {2: error})
    assert [len(call) for call in desk.calls] == [256, 255]
    *lines, end = client.answers
    assert [answer["line"] for answer in lines] == list(range(1, 513))
    refused = {answer["line"]: answer["error"]["status"] for answer in lines if "error" in answer}
    assert refused == dict.fromkeys(range(257, 513), status) | {301: 400}
    assert_answer(end, StreamEnd)
    assert (end["stopped_after"], end["error"]["status"]) == (512, status)
    assert "/disk" not in str(end)
    assert client.ended


def test_a_stream_that_ends_for_want_of_room_is_counted_once() -> None:
    telemetry = Telemetry()
    put([many(600)], {1: MemoryFull("full")}, telemetry=telemetry)
    assert b'rejected_total{reason="memory_full"} 1.0' in telemetry.render()


def test_bad_lines_alone_are_not_applied() -> None:
    desk, client = put([b"{\n" * 600])
    assert desk.calls == []
    assert [answer["line"] for answer in client.answers] == list(range(1, 601))


def test_the_batch_that_was_handed_over_outlives_its_client() -> None:
    async def run() -> None:
        desk, client = Desk(), Client([many(256), many(50), LEAVES])
        desk.go_on.clear()
        ending = asyncio.ensure_future(stream(desk, client))
        while client.asked < 3 or not desk.calls:
            await asyncio.sleep(0.001)
        desk.go_on.set()
        await ending
        assert [label.text for label in desk.applied] == [f"label {n}" for n in range(1, 257)]
        assert len(desk.calls) == 1

    asyncio.run(run())


def test_a_client_that_leaves_at_once_is_not_answered() -> None:
    desk, client = put([b'{"text": "cut', LEAVES])
    assert (desk.calls, client.messages) == ([], [])


def test_a_client_that_leaves_while_the_queue_is_full_is_forgotten() -> None:
    full = dict.fromkeys(range(1, 100), Overloaded("full", retry_after=1))
    desk, _ = put([good("a"), *[b"\n"] * 100, LEAVES], full)
    assert desk.applied == []
    assert len(desk.calls) < 100


@pytest.mark.parametrize("last", [HANGS, b""])
def test_a_service_that_drains_ends_the_stream_between_batches(last: bytes) -> None:
    async def run() -> None:
        desk, client = Desk(), Client([many(300), last])
        await stream(desk, client, draining=lambda: len(desk.calls) > 0)
        *lines, end = client.answers
        assert [answer["line"] for answer in lines] == list(range(1, 257))
        assert (end["stopped_after"], end["error"]["status"]) == (256, 503)
        assert client.ended

    asyncio.run(run())


def test_an_idle_stream_ends_when_the_service_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_stream, "LOOK_SECONDS", 0.001)
    looks = iter([False] * 5)
    desk, client = put([HANGS], draining=lambda: next(looks, True))
    assert [answer["stopped_after"] for answer in client.answers] == [0]
    assert (desk.calls, client.ended) == ([], True)


def test_a_service_that_drains_does_not_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_stream, "RETRY_SECONDS", 0)

    async def run() -> None:
        desk = Desk(dict.fromkeys(range(1, 100), Overloaded("full", retry_after=1)))
        client = Client([good("a")])
        await stream(desk, client, draining=lambda: len(desk.calls) > 5)
        line, end = client.answers
        assert (line["error"]["status"], end["stopped_after"]) == (503, 1)

    asyncio.run(run())


def test_all_is_read_before_any_answer_is_while_the_buffer_has_room() -> None:
    async def run() -> None:
        desk, client = Desk(), Client([many(1000)] * 5)
        client.reads.clear()
        ending = asyncio.ensure_future(stream(desk, client))
        while client.asked < 6:
            await asyncio.sleep(0.001)
        assert client.messages == []
        client.reads.set()
        await ending
        assert len(client.answers) == 5000

    asyncio.run(run())


def test_beyond_it_reading_waits_for_the_client() -> None:
    async def run() -> None:
        desk, client = Desk(), Client([many(256)] * 50)
        client.reads.clear()
        ending = asyncio.ensure_future(stream(desk, client, stream_answer_bytes=50_000))
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert 2 <= client.asked < 20
        client.reads.set()
        await ending
        assert len(client.answers) == len(desk.applied) == 50 * 256

    asyncio.run(run())


def test_reading_waits_for_the_writer() -> None:
    async def run() -> None:
        desk, client = Desk(), Client([many(256)] * 50)
        desk.go_on.clear()
        ending = asyncio.ensure_future(stream(desk, client))
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert client.asked <= 3  # a batch with the writer, one that waits, one cut up
        desk.go_on.set()
        await ending
        assert len(desk.applied) == 50 * 256

    asyncio.run(run())


@pytest.mark.parametrize("limit", [1000, 10_000_000])
def test_a_client_that_never_reads_is_given_up(limit: int) -> None:
    async def run() -> None:
        desk, client = Desk(), Client([many(256)] * 5)
        client.reads.clear()
        await stream(desk, client, stream_answer_bytes=limit, patience=0.05)
        assert client.messages == []
        assert len(desk.applied) == (256 if limit == 1000 else 5 * 256)

    asyncio.run(run())


def test_a_client_that_reads_slowly_is_not() -> None:
    async def run() -> None:
        client = Client([many(256)] * 20)
        send = client.send

        async def send_slowly(message: dict[str, Any]) -> None:
            await asyncio.sleep(0.05)
            await send(message)

        client.send = send_slowly  # type: ignore[method-assign]
        await stream(Desk(), client, stream_answer_bytes=1000, patience=0.5)
        assert len(client.answers) == 20 * 256

    asyncio.run(run())
