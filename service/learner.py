"""Encodes what is to be learned, in threads that yield to those that answer."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from service.core.encoder import Encoder
from service.core.events import Item, encode_item
from service.core.types import Halves

NICENESS = 10  # answering threads get about nine tenths of a contended core
CHUNK_ITEMS = 4


class Learner:
    """A pool of niced threads; belongs to the event loop."""

    def __init__(self, threads: int) -> None:
        """Use at most `threads` cores, and those only where nobody wants an answer."""
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "learn", initializer=_yield_to_others)

    async def encode(
        self, encoder: Encoder, items: Sequence[Item], wanted: Sequence[bool]
    ) -> list[Halves | None]:
        """The rows of each item, None where they are not wanted.

        Work is handed to the pool in small chunks, a few at a time: a thousand labels of one
        request must not keep a single label of another waiting.
        """
        vectors: list[Halves | None] = [None] * len(items)
        places = [place for place, want in enumerate(wanted) if want]
        turn = asyncio.Semaphore(self._threads)
        loop = asyncio.get_running_loop()

        async def run(chunk: Sequence[int]) -> None:
            async with turn:
                work = partial(_encode, encoder, [items[place] for place in chunk])
                for place, rows in zip(
                    chunk, await loop.run_in_executor(self._pool, work), strict=True
                ):
                    vectors[place] = rows

        chunks = [places[i : i + CHUNK_ITEMS] for i in range(0, len(places), CHUNK_ITEMS)]
        await asyncio.gather(*(run(chunk) for chunk in chunks))
        return vectors

    def close(self) -> None:
        """Finish what was begun."""
        self._pool.shutdown()


def _encode(encoder: Encoder, items: Sequence[Item]) -> list[Halves]:
    return [encode_item(encoder, item) for item in items]


def _yield_to_others() -> None:
    """Lower this thread's priority; only Linux has one for each thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
