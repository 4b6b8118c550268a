"""A pool of low-priority child processes that encode posted texts.

They leave the cores to the threads that answer queries. A child that dies is replaced.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import orjson

from service.core.changes import Item
from service.core.encoding.child import receive, send
from service.core.encoding.representer import EncodedItem, Neighbour
from service.core.errors import NotReady
from service.core.replay import texts_of

log = logging.getLogger("keymatch")


class EncoderProcess:
    """One child process; used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Start the process; it loads the model of the bundle in `folder` meanwhile."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "service.core.encoding.child", str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def encode(self, items: Sequence[Item], *, dimension: int) -> list[EncodedItem]:
        """Encode items; raises `OSError` where the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        texts = [texts_of(item) for item in items]
        send(self._process.stdin, orjson.dumps(texts))
        vectors, neighbours = receive(self._process.stdout), receive(self._process.stdout)
        if vectors is None or neighbours is None:
            raise BrokenPipeError(f"the encoding child ended with {self._process.wait()}")
        rows = np.frombuffer(vectors, np.float16).reshape(-1, dimension)
        rows_of_items = np.split(rows, np.cumsum([len(item_texts) for item_texts in texts])[:-1])
        return [
            EncodedItem(
                rows=item_rows,
                neighbours=tuple(Neighbour(**neighbour) for neighbour in item_neighbours),
            )
            for item_rows, item_neighbours in zip(
                rows_of_items, orjson.loads(neighbours), strict=True
            )
        ]

    def close(self) -> None:
        """Kill the process; it holds nothing that could be lost."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # bytes that the process did not read
                    stream.close()


class EncoderPool:
    """Child processes for one bundle's encoder: one from the start, more as they are needed."""

    def __init__(self, folder: Path, *, most: int) -> None:
        """Start the first process; `most` is the largest number at once."""
        self.folder = folder
        self._lock = threading.Lock()
        self._closed = False
        self._idle: SimpleQueue[EncoderProcess] = SimpleQueue()
        self._idle.put(EncoderProcess(folder))
        self._startable = most - 1

    def encode(self, items: Sequence[Item], *, dimension: int) -> list[EncodedItem]:
        """Encode items in a free process; waits for one, and replaces one that has died.

        Raises `NotReady` where the replacement dies as well.
        """
        process = self._take()
        try:
            try:
                return process.encode(items, dimension=dimension)
            except OSError as error:
                log.warning("an encoding child is replaced", extra={"cause": str(error)})
                process.close()
                process = EncoderProcess(self.folder)
                return process.encode(items, dimension=dimension)
        except OSError as error:
            log.error("texts cannot be encoded", extra={"cause": str(error)})
            raise NotReady("texts cannot be encoded at the moment") from error
        finally:
            self._put_back(process)

    def close(self) -> None:
        """End all processes, busy ones when they have finished their work."""
        with self._lock:
            self._closed = True
            idle = [self._idle.get() for _ in range(self._idle.qsize())]
        for process in idle:
            process.close()

    def _take(self) -> EncoderProcess:
        with self._lock:
            if self._closed:  # items that were admitted before a reload are still encoded
                return EncoderProcess(self.folder)
            if self._idle.empty() and self._startable:
                self._startable -= 1
                return EncoderProcess(self.folder)
        return self._idle.get()

    def _put_back(self, process: EncoderProcess) -> None:
        with self._lock:
            if not self._closed:
                self._idle.put(process)
                return
        process.close()
