"""Encodes posted labels and instances, in chunks, in the child processes of an `EncoderPool`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from service.core.changes import Item
from service.core.encoding.representer import EncodedItem
from service.engine.encoder_pool import EncoderPool
from service.engine.loaded_bundle import LoadedBundle

CHUNK_ITEMS = 4


class LabelEncoding:
    """A pool of processes and as many threads that wait for them; belongs to the event loop."""

    def __init__(self, loaded: LoadedBundle, *, processes: int) -> None:
        """Start a pool for a loaded bundle; `processes` is the largest number at once."""
        self._processes = processes
        self._threads = ThreadPoolExecutor(processes, "learn")
        self._pool = EncoderPool(loaded.bundle.folder, most=processes)

    async def encode(
        self, loaded: LoadedBundle, items: Sequence[Item], needed: Sequence[bool]
    ) -> list[EncodedItem | None]:
        """Encode the items that are `needed`; the others get None.

        Chunks are small and only as many are handed on at a time as there are processes, so that a
        request with a thousand labels does not delay another's single label. Raises `NotReady`
        where the child processes keep dying.
        """
        encoded_items: list[EncodedItem | None] = [None] * len(items)
        places = [place for place, is_needed in enumerate(needed) if is_needed]
        turn = asyncio.Semaphore(self._processes)
        loop, pool = asyncio.get_running_loop(), self._pool_for(loaded)
        dimension = loaded.encoder.dimension

        async def run(chunk: Sequence[int]) -> None:
            async with turn:
                work = partial(pool.encode, [items[place] for place in chunk], dimension=dimension)
                encoded_chunk = await loop.run_in_executor(self._threads, work)
                for place, encoded in zip(chunk, encoded_chunk, strict=True):
                    encoded_items[place] = encoded

        chunks = [places[i : i + CHUNK_ITEMS] for i in range(0, len(places), CHUNK_ITEMS)]
        await asyncio.gather(*(run(chunk) for chunk in chunks))
        return encoded_items

    def close(self) -> None:
        """Finish the work that was started, then end the processes."""
        self._threads.shutdown()
        self._pool.close()

    def _pool_for(self, loaded: LoadedBundle) -> EncoderPool:
        """The pool for a bundle's encoder; the first call after a reload replaces the pool."""
        if loaded.bundle.folder != self._pool.folder:
            former = self._pool
            self._pool = EncoderPool(loaded.bundle.folder, most=self._processes)
            self._threads.submit(former.close)
        return self._pool
