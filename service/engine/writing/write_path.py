"""The way of a write: admission, encoding in child processes, then the writer's queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.engine.admission import Admission
from service.engine.label_encoding import LabelEncoding
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.operations import Operation, changed
from service.engine.writing.write_queue import RequestKey, WriteJob
from service.engine.writing.writer import Writer
from service.engine.writing.written import Written


class WritePath:
    """Encodes operations and hands them to the writer; belongs to the event loop."""

    def __init__(
        self,
        encoding: LabelEncoding,
        writer: Writer,
        *,
        loaded: Callable[[], LoadedBundle],
        queue_items: int,
    ) -> None:
        """`loaded` returns the bundle that is served; `queue_items` may wait to be encoded."""
        self._encoding, self._writer, self._loaded = encoding, writer, loaded
        self._admission = Admission(queue_items, waiting_items="labels wait to be encoded")

    async def write(self, operation: Operation, *, request: RequestKey | None) -> Written:
        """Carry out an operation, see `Engine.write`."""
        items, loaded = operation.items, self._loaded()
        with self._admission.admit(len(items)):
            new = {id(item) for item in changed(items, loaded.memory.view.labels)}
            needed = [id(item) in new for item in items]
            encoded_items = await self._encoding.encode(loaded, items, needed)
        job = WriteJob(
            operation=operation,
            encoded_items=encoded_items,
            encoder_fingerprint=loaded.representer.fingerprint,
            request=request,
        )
        future = self._writer.submit(job)
        # Shielded: a client that goes away must not cancel what may already be on the disk.
        return await asyncio.shield(asyncio.wrap_future(future))
