"""The way of a write: admission, encoding of what is posted in bulk, then the writer's queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from service.core.changes import Item, rows_of
from service.core.encoding.representer import EncodedItem
from service.core.errors import DeadlineExceeded, UnknownLabels
from service.engine.admission import Admission
from service.engine.label_encoding import LabelEncoding
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.operations import (
    LabelsKnown,
    Operation,
    PutInstances,
    RequireLabels,
    changed,
    require_labels,
)
from service.engine.writing.processor_share import ProcessorShare
from service.engine.writing.write_queue import RequestKey, WriteJob
from service.engine.writing.writer import Writer
from service.engine.writing.written import Written

FEW_TEXTS = 4  # that the writer's thread encodes itself, in some milliseconds


class WritePath:
    """Hands operations to the writer, encoded by children where it is many texts; event loop only.

    A child costs a write two changes of process, and what it shares with the service it computes
    with cold caches: encoding a few texts in the writer's thread takes half the processor time. The
    interpreter's lock is free while the graph runs. Many texts would keep other writes waiting.
    """

    def __init__(
        self,
        encoding: LabelEncoding,
        writer: Writer,
        *,
        loaded: Callable[[], LoadedBundle],
        share: ProcessorShare,
        queue_items: int,
        patience: float,
    ) -> None:
        """`loaded` returns the bundle that is served; `queue_items` may wait to be encoded.

        `share` is what encoding in the writer's thread may take, beyond it children encode.
        `patience` is how many seconds a write may wait for the writer.
        """
        self._encoding, self._writer, self._loaded = encoding, writer, loaded
        self._share, self._patience = share, patience
        self._admission = Admission(queue_items, waiting_items="labels wait to be encoded")

    async def write(self, operation: Operation, *, request: RequestKey | None) -> Written:
        """Carry out an operation, see `Engine.write`."""
        items, loaded = operation.items, self._loaded()
        encoded_items: Sequence[EncodedItem | None] = [None] * len(items)
        if items and not self._left_to_writer(items, loaded):
            if isinstance(operation, PutInstances):
                answered = await self._answered(operation, loaded, request)
                if answered is not None:
                    return answered
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
        return await self._written(job)

    def _left_to_writer(self, items: Sequence[Item], loaded: LoadedBundle) -> bool:
        if sum(rows_of(item) for item in items) > FEW_TEXTS:
            return False
        # The combiner's arithmetic holds the interpreter's lock for long.
        return not self._encoding.warm or (self._share.left and loaded.bundle.novel is None)

    async def _answered(
        self, operation: PutInstances, loaded: LoadedBundle, request: RequestKey | None
    ) -> Written | None:
        """Refuse clicks of unknown labels before they are encoded; None where all labels exist.

        The writer decides: another process may have written the labels just now, and an idempotency
        key may have an answer. Raises `UnknownLabels`.
        """
        instances, labels = operation.instances, loaded.memory.view.labels
        try:
            await asyncio.to_thread(require_labels, instances, labels)
        except UnknownLabels:
            job = WriteJob(
                operation=RequireLabels(instances=instances),
                encoded_items=[],
                encoder_fingerprint=loaded.representer.fingerprint,
                request=request,
            )
            with suppress(LabelsKnown):
                return await self._written(job)
        return None

    async def _written(self, job: WriteJob) -> Written:
        """Queue a job and wait for its result; raises `DeadlineExceeded` if it is not begun."""
        written = asyncio.wrap_future(self._writer.submit(job))
        # Shielded: a client that goes away must not cancel what may already be on the disk.
        try:
            async with asyncio.timeout(self._patience):
                return await asyncio.shield(written)
        except TimeoutError as error:
            if job.future.cancel():  # the writer has not begun it, and never will
                raise DeadlineExceeded("the write waited too long; nothing was written") from error
            return await asyncio.shield(written)
