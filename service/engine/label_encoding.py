"""Encodes what is posted in bulk, in chunks, in the child processes of an `EncoderPool`."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from service.core.changes import Item
from service.core.encoding.representer import EncodedItem
from service.core.errors import DeadlineExceeded
from service.core.processes.low_priority import niceness_of
from service.engine.encoder_pool import EncoderPool
from service.engine.loaded_bundle import LoadedBundle

CHUNK_ITEMS = 4


class LabelEncoding:
    """The children of the bundle that is served; `encode` belongs to the event loop."""

    def __init__(
        self, loaded: LoadedBundle, *, processes: int, share: float, patience: float
    ) -> None:
        """Start the first of at most `processes` children.

        Each gets at least `share` of a core that others keep busy. `patience` is how many seconds a
        chunk may take.
        """
        self._processes, self._niceness = processes, niceness_of(share)
        self._patience = patience
        self._fingerprint = loaded.representer.fingerprint
        self._pool = self._pool_for(loaded)

    @property
    def warm(self) -> bool:
        """Whether a child can encode without being started first."""
        return self._pool.warm

    def wait_until_warm(self) -> None:
        """Wait until the first child encodes; raises `NotReady` where it cannot be started."""
        self._pool.wait_until_warm()

    @contextmanager
    def switched_to(self, loaded: LoadedBundle) -> Iterator[None]:
        """Warm a child for another bundle, and use it once the block, which serves it, succeeds.

        Raises `NotReady` where none can be started.
        """
        pool = self._pool_for(loaded)
        no_longer_needed = pool
        try:
            pool.wait_until_warm()
            yield
            no_longer_needed = self._pool
            self._pool, self._fingerprint = pool, loaded.representer.fingerprint
        finally:
            threading.Thread(
                target=no_longer_needed.close,
                kwargs={"seconds": self._patience},
                name="close-encoding",
                daemon=True,
            ).start()

    async def encode(
        self, loaded: LoadedBundle, items: Sequence[Item], needed: Sequence[bool]
    ) -> list[EncodedItem | None]:
        """Encode the items that are `needed`; the others get None.

        Chunks are small and only as many are handed on at a time as there are processes, so that a
        request with a thousand labels does not delay another's. After a reload, items of the former
        bundle get None as well. Raises `NotReady` where the children keep dying or do not answer,
        and `DeadlineExceeded` where a chunk takes longer than the patience.
        """
        encoded_items: list[EncodedItem | None] = [None] * len(items)
        pool, dimension = self._pool, loaded.encoder.dimension
        if loaded.representer.fingerprint != self._fingerprint:
            return encoded_items
        places = [place for place, is_needed in enumerate(needed) if is_needed]
        running: deque[tuple[Sequence[int], asyncio.Future[list[EncodedItem]]]] = deque()
        try:
            for start in range(0, len(places), CHUNK_ITEMS):
                if len(running) == self._processes:
                    await self._finish(*running[0], encoded_items)
                    running.popleft()
                chunk = places[start : start + CHUNK_ITEMS]
                future = pool.submit([items[place] for place in chunk], dimension=dimension)
                if future is not None:
                    running.append((chunk, asyncio.wrap_future(future)))
            while running:
                await self._finish(*running[0], encoded_items)
                running.popleft()
        finally:  # after an error nobody needs what was not begun
            for _, unfinished in running:
                unfinished.cancel()
        return encoded_items

    def close(self) -> None:
        """Finish the work that was started, for some seconds, then end the processes."""
        self._pool.close()

    def kill(self) -> None:
        """End the processes at once."""
        self._pool.kill()

    async def _finish(
        self,
        chunk: Sequence[int],
        future: asyncio.Future[list[EncodedItem]],
        encoded_items: list[EncodedItem | None],
    ) -> None:
        """Wait for a chunk and put its items in their places."""
        try:
            async with asyncio.timeout(self._patience):
                encoded_chunk = await future
        except TimeoutError as error:
            raise DeadlineExceeded("texts waited too long to be encoded; try again") from error
        for place, encoded in zip(chunk, encoded_chunk, strict=True):
            encoded_items[place] = encoded

    def _pool_for(self, loaded: LoadedBundle) -> EncoderPool:
        return EncoderPool(
            loaded.bundle.folder,
            most=self._processes,
            niceness=self._niceness,
            patience=self._patience,
        )
