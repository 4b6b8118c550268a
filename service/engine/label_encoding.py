"""Encodes what is to be learned, in child processes that make way for those that answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from service.core.encoding.representer import EncodedItem
from service.core.replay import Item
from service.engine.encoder_pool import EncodingChildren
from service.engine.loaded_bundle import Serving

CHUNK_ITEMS = 4


class Learner:
    """Children with a thread each that waits for them; belongs to the event loop."""

    def __init__(self, serving: Serving, *, processes: int) -> None:
        """Use at most `processes` cores, and those only where nobody wants an answer."""
        self._processes = processes
        self._pool = ThreadPoolExecutor(processes, "learn")
        self._children = EncodingChildren(serving.bundle.folder, most=processes)

    async def make(
        self, serving: Serving, items: Sequence[Item], wanted: Sequence[bool]
    ) -> list[EncodedItem | None]:
        """The rows of each item, None where they are not wanted.

        Work is handed on in small chunks, a few at a time: a thousand labels of one request must
        not keep a single label of another waiting. Raises `NotReady` where children keep dying.
        """
        encoded_items: list[EncodedItem | None] = [None] * len(items)
        places = [place for place, want in enumerate(wanted) if want]
        turn = asyncio.Semaphore(self._processes)
        loop, children = asyncio.get_running_loop(), self._children_for(serving)
        dimension = serving.encoder.dimension

        async def run(chunk: Sequence[int]) -> None:
            async with turn:
                work = partial(
                    children.make, [items[place] for place in chunk], dimension=dimension
                )
                for place, own in zip(
                    chunk, await loop.run_in_executor(self._pool, work), strict=True
                ):
                    encoded_items[place] = own

        chunks = [places[i : i + CHUNK_ITEMS] for i in range(0, len(places), CHUNK_ITEMS)]
        await asyncio.gather(*(run(chunk) for chunk in chunks))
        return encoded_items

    def close(self) -> None:
        """Finish what was begun."""
        self._pool.shutdown()
        self._children.close()

    def _children_for(self, serving: Serving) -> EncodingChildren:
        """The children of the bundle that is served; a reload is followed by others."""
        if serving.bundle.folder != self._children.folder:
            former = self._children
            self._children = EncodingChildren(serving.bundle.folder, most=self._processes)
            self._pool.submit(former.close)
        return self._children
