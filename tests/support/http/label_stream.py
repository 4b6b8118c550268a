"""A stream of labels within this process: a client and a writer that a test controls."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import orjson

from service.core.types import NewLabel
from service.engine.writing.written import Written, WrittenLabel
from service.http.large.held_bytes import HeldBytes, Hold
from service.http.request_models import RequestModels
from service.http.side_thread import SideThread
from service.http.streaming.label_stream import LabelStream
from service.settings import Limits
from service.telemetry import Telemetry

LEAVES = None  # in place of a chunk: the client disconnects
HANGS = b"hangs"  # in place of a chunk: the client stays connected and sends nothing


class FakeWriter:
    """Writes labels as the engine does, and remembers the calls.

    `fails` are exceptions by the number of the call that raises them, from 1.
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
        self.calls.append(list(labels))
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
    """Sends the given chunks, one for each call of `receive`, and keeps what it is answered."""

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


def stream(
    writer: FakeWriter,
    client: FakeClient,
    *,
    draining: Callable[[], bool] = lambda: False,
    telemetry: Telemetry | None = None,
    patience: float = 60,
    hold: Hold | None = None,
    **limits: int,
) -> Awaitable[None]:
    settings = Limits(**limits)
    answer = LabelStream(
        model=RequestModels(settings).label,
        side_thread=SideThread(),
        apply=writer.apply,
        draining=draining,
        limits=settings,
        telemetry=telemetry or Telemetry(),
        patience=patience,
        hold=hold or HeldBytes(settings.held_bytes).hold(),
    )
    return answer({"type": "http", "headers": []}, client.receive, client.send)


def put(
    chunks: Iterable[bytes | None], fails: dict[int, Exception] | None = None, **how: Any
) -> tuple[FakeWriter, FakeClient]:
    """Stream the chunks, and return the writer and the client after the stream's end."""

    async def run() -> tuple[FakeWriter, FakeClient]:
        writer, client = FakeWriter(fails), FakeClient(chunks)
        await stream(writer, client, **how)
        return writer, client

    return asyncio.run(run())


def good(*texts: str) -> bytes:
    return b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts)


def many(count: int) -> bytes:
    return good(*(f"label {number}" for number in range(1, count + 1)))
