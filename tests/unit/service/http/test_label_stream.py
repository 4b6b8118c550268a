"""Each line of a stream of labels is answered once, with bounded memory, however it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.errors import LogError, MemoryFull, NotReady, Overloaded
from service.core.processes.quick_switches import QuickSwitches
from service.core.types import NewLabel
from service.engine.writing.operations import Written, WrittenLabel
from service.http import label_stream
from service.http.bodies import limited
from service.http.bounded_model import BoundedModel
from service.http.label_stream import BATCH_LINES, LabelStream, LineRefusal, StreamEnd
from service.http.labels import LabelBody, label_status
from service.http.request_body import HeldBytes, Hold, SideThread
from service.settings import Limits
from service.telemetry import Telemetry
from tests.support.asynchronous import on_a_loop
from tests.support.http.answers import assert_answer

LEAVES = None  # instead of a chunk: the client disconnects
HANGS = b"hangs"  # instead of a chunk: the client stays connected and sends nothing


class FakeWriter:
    """Writes labels like the engine, and records the calls; a label's id is its text.

    `fails` maps the number of a call, from 1, to the exception that it raises.
    """

    def __init__(self, fails: dict[int, Exception] | None = None) -> None:
        self.fails = fails or {}
        self.calls: list[list[NewLabel]] = []
        self.applied: list[NewLabel] = []
        self.running = 0
        self.unblocked = asyncio.Event()
        self.unblocked.set()

    async def apply(self, labels: Sequence[NewLabel]) -> Written:
        assert not self.running, "one batch at a time"
        labels = [replace(label, id=label.id or label.text) for label in labels]
        self.calls.append(labels)
        self.running += 1
        try:
            await self.unblocked.wait()
            await asyncio.sleep(0)
            if error := self.fails.get(len(self.calls)):
                raise error
        finally:
            self.running -= 1
        self.applied += labels
        written = tuple(WrittenLabel(id=label.id, status="created") for label in labels)
        return Written(version=len(self.applied), labels=written)


class FakeClient:
    """Sends the given chunks, one per call of `receive`, and keeps the answers."""

    def __init__(self, chunks: Iterable[bytes | None]) -> None:
        self._chunks = iter(chunks)
        self.received = 0
        self.messages: list[dict[str, Any]] = []
        self.reading = asyncio.Event()
        self.reading.set()

    async def receive(self) -> dict[str, Any]:
        self.received += 1
        await asyncio.sleep(0)
        chunk = next(self._chunks, b"")
        if chunk is LEAVES:
            return {"type": "http.disconnect"}
        if chunk is HANGS:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunk, "more_body": bool(chunk)}

    async def send(self, message: dict[str, Any]) -> None:
        await self.reading.wait()
        self.messages.append(message)

    @property
    def answers(self) -> list[dict[str, Any]]:
        content = b"".join(message.get("body", b"") for message in self.messages)
        return [orjson.loads(line) for line in content.splitlines()]

    @property
    def ended(self) -> bool:
        return bool(self.messages) and self.messages[-1].get("more_body") is False


@cache
def label_model(limits: Limits) -> BoundedModel[LabelBody]:
    """The model of a line, cached because making all models takes longer than a stream."""
    return BoundedModel(limited(LabelBody, limits))


@cache
def unread() -> Telemetry:
    """Metrics that no test reads."""
    return Telemetry()


def stream(
    writer: FakeWriter,
    client: FakeClient,
    *,
    draining: Callable[[], bool] = lambda: False,
    telemetry: Telemetry | None = None,
    patience: float = 60,
    **limits: int,
) -> Awaitable[None]:
    settings = Limits(**limits)
    answer = LabelStream(
        model=label_model(settings),
        read=lambda body: body.to_label(),
        status=label_status,
        side_thread=SideThread(QuickSwitches()),
        apply=writer.apply,
        draining=draining,
        limits=settings,
        telemetry=telemetry or unread(),
        patience=patience,
        hold=Hold(HeldBytes(settings.held_bytes)),
    )
    return answer({"type": "http", "headers": []}, client.receive, client.send)


def put(
    chunks: Iterable[bytes | None], fails: dict[int, Exception] | None = None, **how: Any
) -> tuple[FakeWriter, FakeClient]:
    """Stream the chunks to the end; return the writer and the client."""

    async def run() -> tuple[FakeWriter, FakeClient]:
        writer, client = FakeWriter(fails), FakeClient(chunks)
        await stream(writer, client, **how)
        return writer, client

    return asyncio.run(run())


def good(*texts: str) -> bytes:
    return b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts)


def many(count: int) -> bytes:
    return good(*(f"label {number}" for number in range(1, count + 1)))


LINES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=10).map(lambda text: orjson.dumps({"text": text})),
    st.sampled_from([b"", b" \t", b"\r", b"{}", b'{"text":"a"}\r', b"\xef\xbb\xbf", b"null", b"["]),
    st.integers(0, 200).map(lambda size: b'{"text": "%s"}' % (b"x" * size)),
)


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the rest of a stream that ends early."""
    monkeypatch.setattr(label_stream, "LINGER_SECONDS", 0.01)


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
    writer, client = put([good("a") + line + b"\r\n" + good("b")], body_bytes=10_000)
    assert [label.id for label in writer.applied] == ["a", "b"]
    first, refusal, last = client.answers
    assert (first["id"], last["id"], last["line"]) == ("a", "b", 3)
    assert_answer(refusal, LineRefusal)
    assert (refusal["line"], refusal["error"]["status"]) == (2, status)
    fields = [one["field"] for one in refusal["error"].get("errors", [])]
    assert field in fields if field else not fields


@pytest.mark.parametrize(
    ("limits", "sizes"), [({}, [256, 256, 256, 232]), ({"body_bytes": 18 * 100}, [100] * 10)]
)
def test_batches_are_full_while_lines_come_fast(limits: dict[str, int], sizes: list[int]) -> None:
    """A batch is also full once it has the bytes of a body."""
    writer, client = put([good(*(f"{number:07}" for number in range(1000)))], **limits)
    assert [len(call) for call in writer.calls] == sizes
    assert [answer["line"] for answer in client.answers] == list(range(1, 1001))
    versions = dict.fromkeys(answer["version"] for answer in client.answers)
    assert list(versions) == list(accumulate(sizes))


@on_a_loop
async def test_lines_that_trickle_in_do_not_keep_the_first_one_waiting() -> None:
    client = FakeClient([])

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.005)
        client.received += 1
        more = not client.answers
        assert client.received < BATCH_LINES
        return {"type": "http.request", "body": good("a") * more, "more_body": more}

    client.receive = receive  # type: ignore[method-assign]
    await stream(FakeWriter(), client)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """The bytes of a stream, and the pieces in which they arrive."""
    content = b"\n".join(draw(st.lists(LINES, max_size=12))) + draw(st.sampled_from([b"", b"\n"]))
    cuts = draw(st.lists(st.integers(0, len(content)), max_size=6).map(sorted))
    bounds = [0, *cuts, len(content)]
    pieces = [content[start:end] for start, end in pairwise(bounds) if start < end]
    return content, pieces


def numbers_of_lines(content: bytes) -> list[int]:
    """Find the numbers of all lines that are not blank, in a slow and simple way."""
    lines = content.split(b"\n")
    lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
    return [number for number, line in enumerate(lines, 1) if line.strip(b" \t\r")]


@settings(max_examples=300)
@given(
    stream=streams(),
    before=st.integers(0, 2),
    fails=st.booleans(),
    body_bytes=st.sampled_from([30, 100, 4_194_304]),
)
def test_every_line_has_one_answer_up_to_a_failure(
    stream: tuple[bytes, list[bytes]], before: int, fails: bool, body_bytes: int
) -> None:
    content, pieces = stream
    first = b'{"text": "first"}\n'
    failure = {1: LogError("no disk")} if fails else None
    writer, client = put([*[first] * before, *pieces], failure, body_bytes=body_bytes)
    assert client.ended
    numbers = numbers_of_lines(first * before + content)
    lines = [answer for answer in client.answers if "line" in answer]
    answered = [answer["line"] for answer in lines]
    assert all(("id" in answer) != ("error" in answer) for answer in lines)
    assert [label.id for label in writer.applied] == [one["id"] for one in lines if "id" in one]
    if fails and writer.calls:
        assert client.answers[-1]["stopped_after"] == answered[-1]
        assert answered == [number for number in numbers if number <= answered[-1]]
    else:
        assert client.answers == lines and answered == numbers


@on_a_loop
async def test_a_full_buffer_stops_reading_from_the_client() -> None:
    writer, client = FakeWriter(), FakeClient([many(256)] * 50)
    client.reading.clear()
    ending = asyncio.ensure_future(stream(writer, client, stream_answer_bytes=50_000))
    for _ in range(100):
        await asyncio.sleep(0.001)
    assert 2 <= client.received < 20
    client.reading.set()
    await ending
    assert len(client.answers) == len(writer.applied) == 50 * 256


@on_a_loop
async def test_reading_waits_for_the_writer() -> None:
    writer, client = FakeWriter(), FakeClient([many(256)] * 50)
    writer.unblocked.clear()
    ending = asyncio.ensure_future(stream(writer, client))
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert client.received <= 3  # batches: being written, waiting, being split
    writer.unblocked.set()
    await ending
    assert len(writer.applied) == 50 * 256


@pytest.mark.parametrize("limit", [1000, 10_000_000])
@on_a_loop
async def test_a_client_that_never_reads_is_given_up(limit: int) -> None:
    writer, client = FakeWriter(), FakeClient([many(256)] * 5)
    client.reading.clear()
    await stream(writer, client, stream_answer_bytes=limit, patience=0.05)
    assert client.messages == []
    assert len(writer.applied) == (256 if limit == 1000 else 5 * 256)


@on_a_loop
async def test_a_client_that_reads_slowly_is_not() -> None:
    client = FakeClient([many(256)] * 20)
    send = client.send

    async def send_slowly(message: dict[str, Any]) -> None:
        await asyncio.sleep(0.05)
        await send(message)

    client.send = send_slowly  # type: ignore[method-assign]
    await stream(FakeWriter(), client, stream_answer_bytes=1000, patience=0.5)
    assert len(client.answers) == 20 * 256


def test_a_full_queue_means_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_stream, "RETRY_SECONDS", 0)
    full = Overloaded("full", retry_after=1)
    telemetry = Telemetry()
    writer, client = put([many(600)], {1: full, 2: full, 4: full}, telemetry=telemetry)
    assert [len(call) for call in writer.calls] == [256, 256, 256, 256, 256, 88]
    assert [label.text for label in writer.applied] == [f"label {n}" for n in range(1, 601)]
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
    monkeypatch.setattr(label_stream, "BATCH_SECONDS", 60)  # full batches, also on a busy machine
    content, telemetry = many(300) + b"{\n" + many(600), Telemetry()
    writer, client = put([content[:9000], content[9000:]], {2: error}, telemetry=telemetry)
    assert [len(call) for call in writer.calls] == [256, 255]
    *lines, end = client.answers
    assert [answer["line"] for answer in lines] == list(range(1, 513))
    refused = {answer["line"]: answer["error"]["status"] for answer in lines if "error" in answer}
    assert refused == dict.fromkeys(range(257, 513), status) | {301: 400}
    assert_answer(end, StreamEnd)
    assert (end["stopped_after"], end["error"]["status"]) == (512, status)
    assert "/disk" not in str(end)
    counted = b'rejected_total{reason="memory_full"} %d.0' % (status == 507)
    assert counted in telemetry.render()
    assert client.ended


@on_a_loop
async def test_the_batch_that_was_handed_over_outlives_its_client() -> None:
    writer, client = FakeWriter(), FakeClient([many(256), many(50), LEAVES])
    writer.unblocked.clear()
    ending = asyncio.ensure_future(stream(writer, client))
    while client.received < 3 or not writer.calls:
        await asyncio.sleep(0.001)
    writer.unblocked.set()
    await ending
    assert [label.text for label in writer.applied] == [f"label {n}" for n in range(1, 257)]
    assert len(writer.calls) == 1


def test_a_client_that_leaves_at_once_is_not_answered() -> None:
    writer, client = put([b'{"text": "cut', LEAVES])
    assert (writer.calls, client.messages) == ([], [])


def test_a_client_that_leaves_while_the_queue_is_full_is_forgotten() -> None:
    full = dict.fromkeys(range(1, 100), Overloaded("full", retry_after=1))
    writer, _ = put([good("a"), *[b"\n"] * 100, LEAVES], full)
    assert writer.applied == []
    assert len(writer.calls) < 100


@pytest.mark.parametrize("last", [HANGS, b""])
@on_a_loop
async def test_a_service_that_drains_ends_the_stream_between_batches(last: bytes) -> None:
    writer, client = FakeWriter(), FakeClient([many(300), last])
    await stream(writer, client, draining=lambda: len(writer.calls) > 0)
    *lines, end = client.answers
    assert [answer["line"] for answer in lines] == list(range(1, 257))
    assert (end["stopped_after"], end["error"]["status"]) == (256, 503)
    assert client.ended


@on_a_loop
async def test_a_service_that_drains_does_not_wait_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(label_stream, "RETRY_SECONDS", 0)
    writer = FakeWriter(dict.fromkeys(range(1, 100), Overloaded("full", retry_after=1)))
    client = FakeClient([good("a")])
    await stream(writer, client, draining=lambda: len(writer.calls) > 5)
    line, end = client.answers
    assert (line["error"]["status"], end["stopped_after"]) == (503, 1)
