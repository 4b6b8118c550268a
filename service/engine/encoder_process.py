"""A child process that encodes items, as the service sees it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

import numpy as np
import orjson

from service.core.changes import Item
from service.core.encoding.child import receive, send
from service.core.encoding.representer import EncodedItem, Neighbour
from service.core.replay import texts_of


class EncoderProcess:
    """One child process; used by one thread at a time.

    Another thread calls `kill_if_late` now and then: whoever waits for a child that has stopped
    cannot help itself, since reading from a pipe has no time limit.
    """

    def __init__(self, folder: Path, *, niceness: int, awaited: bool = False) -> None:
        """Start the process for the bundle in `folder`; `wait_until_warm` says when it encodes.

        It has `niceness`; one that is `awaited` only from then on.
        """
        command = [sys.executable, "-m", "service.core.encoding.child", str(folder), str(niceness)]
        self._process = subprocess.Popen(
            [*command, *(["awaited"] if awaited else [])],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._due = math.inf  # when it must have answered, by `monotonic`
        self.late = False  # whether it was killed because it had not

    def wait_until_warm(self, *, seconds: float) -> None:
        """Wait for the model to be loaded; raises `OSError` where the process ends before.

        It is late after `seconds`.
        """
        assert self._process.stdout is not None
        with self._answering(seconds):
            message = receive(self._process.stdout)
        if message is None:
            raise self._ended()

    def encode(self, items: Sequence[Item], *, dimension: int, seconds: float) -> list[EncodedItem]:
        """Encode items into rows [n, `dimension`]; raises `OSError` where the process has ended.

        It is late after `seconds`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        texts = [texts_of(item) for item in items]
        with self._answering(seconds):
            send(self._process.stdin, orjson.dumps(texts))
            vectors, neighbours = receive(self._process.stdout), receive(self._process.stdout)
        if vectors is None or neighbours is None:
            raise self._ended()
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

    def kill_if_late(self) -> None:
        """Kill the process if it has not answered in its time; for another thread."""
        if monotonic() > self._due:
            self.late = True
            self.kill()

    def kill(self) -> None:
        """Kill the process, also one that is stopped; for any thread."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and wait for its end; it holds nothing that could be lost."""
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # bytes that the process did not read
                    stream.close()

    @contextmanager
    def _answering(self, seconds: float) -> Iterator[None]:
        self._due = monotonic() + seconds
        try:
            yield
        finally:
            self._due = math.inf

    def _ended(self) -> BrokenPipeError:
        status = self._process.wait()
        if self.late:
            return BrokenPipeError("the encoding child did not answer in its time")
        return BrokenPipeError(f"the encoding child ended with {status}")
