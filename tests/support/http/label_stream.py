"""Label streams within this process: a fake client and a fake writer that a test controls."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import orjson

from service.core.types import NewLabel
from service.engine.writing.operations import Written, WrittenLabel
from service.http.label_stream import LabelStream
from service.http.request_body import HeldBytes, Hold, SideThread
from service.http.request_models import LabelBody, RequestModels
from service.settings import Limits
from service.telemetry import Telemetry

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
def label_model(limits: Limits) -> type[LabelBody]:
    """The model of a line, cached because making all models takes longer than a stream."""
    return RequestModels(limits).label


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
    hold: Hold | None = None,
    **limits: int,
) -> Awaitable[None]:
    settings = Limits(**limits)
    answer = LabelStream(
        model=label_model(settings),
        side_thread=SideThread(),
        apply=writer.apply,
        draining=draining,
        limits=settings,
        telemetry=telemetry or unread(),
        patience=patience,
        hold=hold or HeldBytes(settings.held_bytes).hold(),
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
