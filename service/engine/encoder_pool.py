"""The child processes that encode what is learned, and what becomes of one that dies."""

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

from service.core.encoding.child import receive, send
from service.core.encoding.representer import EncodedItem, Neighbour
from service.core.errors import NotReady
from service.core.replay import Item, texts_of

log = logging.getLogger("keymatch")


class EncodingChild:
    """One child process; used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Start it; it loads its graph meanwhile."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "service.core.encoding.child", str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def make(self, items: Sequence[Item], *, dimension: int) -> list[EncodedItem]:
        """The rows of each item; raises `OSError` where the child has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        texts = [texts_of(item) for item in items]
        send(self._process.stdin, orjson.dumps(texts))
        vectors, neighbours = receive(self._process.stdout), receive(self._process.stdout)
        if vectors is None or neighbours is None:
            raise BrokenPipeError(f"the encoding child ended with {self._process.wait()}")
        rows = np.frombuffer(vectors, np.float16).reshape(-1, dimension)
        pieces = np.split(rows, np.cumsum([len(own) for own in texts])[:-1])
        return [
            EncodedItem(
                rows=own,
                neighbours=tuple(Neighbour(**one) for one in near),
            )
            for own, near in zip(pieces, orjson.loads(neighbours), strict=True)
        ]

    def close(self) -> None:
        """End it; it holds nothing that could be lost."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # of what could not be written any more
                    stream.close()


class EncodingChildren:
    """Children for the encoder of one bundle: one from the start, more as they are needed."""

    def __init__(self, folder: Path, *, most: int) -> None:
        """Start the first, which loads its graph meanwhile."""
        self.folder = folder
        self._lock = threading.Lock()
        self._closed = False
        self._idle: SimpleQueue[EncodingChild] = SimpleQueue()
        self._idle.put(EncodingChild(folder))
        self._more = most - 1  # that may still be started

    def make(self, items: Sequence[Item], *, dimension: int) -> list[EncodedItem]:
        """The rows of each item; waits for a free child, and replaces one that has died.

        Raises `NotReady` where the new one dies as well.
        """
        child = self._take()
        try:
            try:
                return child.make(items, dimension=dimension)
            except OSError as error:
                log.warning("an encoding child is replaced", extra={"cause": str(error)})
                child.close()
                child = EncodingChild(self.folder)
                return child.make(items, dimension=dimension)
        except OSError as error:
            log.error("texts cannot be encoded", extra={"cause": str(error)})
            raise NotReady("texts cannot be encoded at the moment") from error
        finally:
            self._put_back(child)

    def close(self) -> None:
        """End all children, those that are busy once they are done."""
        with self._lock:
            self._closed = True
            idle = [self._idle.get() for _ in range(self._idle.qsize())]
        for child in idle:
            child.close()

    def _take(self) -> EncodingChild:
        with self._lock:
            if self._closed:  # what was admitted before a reload is still encoded
                return EncodingChild(self.folder)
            if self._idle.empty() and self._more:
                self._more -= 1
                return EncodingChild(self.folder)
        return self._idle.get()

    def _put_back(self, child: EncodingChild) -> None:
        with self._lock:
            if not self._closed:
                self._idle.put(child)
                return
        child.close()
