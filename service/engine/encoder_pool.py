"""Encodes bulk-posted items, in chunks, in a pool of child processes.

A child that dies, or is killed because it does not answer in time, is replaced. Its chunk goes to
another child.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np
import orjson

from service.core.changes import Posted, rows_of
from service.core.encoding.child import receive, send
from service.core.encoding.representer import EncodedItem, Neighbour
from service.core.errors import DeadlineExceeded, NotReady
from service.core.processes.low_priority import niceness_of
from service.core.processes.own_code import own_module
from service.core.replay import texts_of
from service.engine.loaded_bundle import LoadedBundle

# Loading takes some two CPU seconds, and a busy machine may leave a few percent of a core.
STARTING_SECONDS = 60.0
CLOSING_SECONDS = 3.0  # to finish encoding when the pool is closed; then children are killed
ENDING_SECONDS = 1.0  # to wait for the threads of killed children

CHUNK_ITEMS = 4
# Two deaths may have another cause; after a third, the items are blamed.
MOST_DEATHS = 2
# A chunk takes milliseconds, or a second if only 4 % of a core is free.
SECONDS_A_TEXT = 0.1
LATE_PATIENCE = 0.25  # of a client's patience, which a chunk may take in addition to its texts
MOST_LATE = 1  # late children per chunk; a client would not wait for another

log = logging.getLogger("keymatch")


@dataclass(kw_only=True, eq=False)
class EncodingChunk:
    """Items for one child to encode into rows of `dimension`; `future` gets the result.

    A client waits for `patience` seconds from `submitted`, a time of `monotonic`. `deaths` counts
    the children that died while encoding it, `late` those of them killed because they took too
    long.
    """

    items: Sequence[Posted]
    dimension: int
    patience: float
    submitted: float = field(default_factory=monotonic)
    deaths: int = 0
    late: int = 0
    future: Future[list[EncodedItem]] = field(default_factory=Future)

    @property
    def seconds(self) -> float:
        """The seconds that a child may take."""
        texts = sum(rows_of(item) for item in self.items)
        return self.patience * LATE_PATIENCE + SECONDS_A_TEXT * texts

    @property
    def hopeless(self) -> bool:
        """Whether to give up: too many children died over it, or nobody waits for it."""
        lost = self.deaths > MOST_DEATHS or self.late > MOST_LATE
        return lost or monotonic() > self.submitted + self.patience


class EncoderProcess:
    """One child process, used by one thread at a time. It is killed if it answers too late.

    Reading from a stopped child's pipe would block forever, so a timer kills the child.
    """

    def __init__(self, folder: Path, *, niceness: int, awaited: bool = False) -> None:
        """Start the process for the bundle in `folder`, at `niceness`.

        An `awaited` process lowers its priority only once it is warm.
        """
        command = own_module("service.core.encoding.child", folder, niceness)
        self._process = subprocess.Popen(
            [*command, *(["awaited"] if awaited else [])],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.late = False  # whether it was killed for answering too late

    def wait_until_warm(self, *, seconds: float) -> None:
        """Wait for the model to load; raises `OSError` if the process ends or is too late."""
        assert self._process.stdout is not None
        with self._answering(seconds):
            message = receive(self._process.stdout)
        if message is None:
            raise self._ended()

    def encode(self, chunk: EncodingChunk) -> list[EncodedItem]:
        """Encode a chunk's items; raises `OSError` if the process has ended or is too late."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        texts = [texts_of(item) for item in chunk.items]
        with self._answering(chunk.seconds):
            send(self._process.stdin, orjson.dumps(texts))
            vectors, neighbours = receive(self._process.stdout), receive(self._process.stdout)
        if vectors is None or neighbours is None:
            raise self._ended()
        rows = np.frombuffer(vectors, np.float16).reshape(-1, chunk.dimension)
        rows_of_items = np.split(rows, np.cumsum([len(item_texts) for item_texts in texts])[:-1])
        neighbours_of_items = [
            tuple(Neighbour(**neighbour) for neighbour in of_item)
            for of_item in orjson.loads(neighbours)
        ]
        return [
            EncodedItem(rows=item_rows, neighbours=of_item)
            for item_rows, of_item in zip(rows_of_items, neighbours_of_items, strict=True)
        ]

    def kill(self) -> None:
        """Kill the process, even if it is stopped. Any thread may call this."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and wait for its end. It has no state that could be lost."""
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # bytes that the process did not read
                    stream.close()

    @contextmanager
    def _answering(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, self._kill_late)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _kill_late(self) -> None:
        self.late = True
        self.kill()

    def _ended(self) -> BrokenPipeError:
        status = self._process.wait()
        if self.late:
            return BrokenPipeError("the encoding child did not answer in its time")
        return BrokenPipeError(f"the encoding child ended with {status}")


class EncoderPool:
    """Child processes that run one bundle's encoder. A thread per child feeds it from one queue.

    The first child is started at once, and another one when all are busy, up to `most`. Chunks go
    to any warm child, so none waits for a starting child while another one is free.
    """

    def __init__(
        self,
        folder: Path,
        *,
        most: int,
        niceness: int,
        patience: float,
        starting_seconds: float = STARTING_SECONDS,
    ) -> None:
        """Start the first child for the bundle in `folder`.

        A client waits `patience` seconds for a chunk. A child may take a quarter of that plus 0.1 s
        per text, and `starting_seconds` to start.
        """
        self.folder, self._most, self._niceness = folder, most, niceness
        self._patience, self._starting_seconds = patience, starting_seconds
        self._changed = threading.Condition()
        self._waiting: deque[EncodingChunk] = deque()
        self._threads: set[threading.Thread] = set()
        self._warm = self._idle = 0  # numbers of children; idle ones are warm and have no chunk
        self._failure = ""  # why the last child could not be started
        self._processes: set[EncoderProcess] = set()
        self._closed = self._killed = False
        with self._changed:
            self._start_thread(awaited=True)

    @property
    def warm(self) -> bool:
        """Whether a child is warm, so that it encodes now or after its present chunk."""
        return self._warm > 0

    def wait_until_warm(self) -> None:
        """Wait for the first child; raises `NotReady` if it cannot be started."""
        with self._changed:
            self._changed.wait_for(lambda: self._warm or self._failure)
            if not self._warm:
                raise NotReady(f"texts cannot be encoded: {self._failure}")

    def submit(
        self, items: Sequence[Posted], *, dimension: int
    ) -> Future[list[EncodedItem]] | None:
        """Encode items into rows [n, `dimension`]; None if the pool is closed.

        The future raises `NotReady` if no child can be started, or if several children died or did
        not answer while encoding these items. The items of a cancelled future are skipped.
        """
        chunk = EncodingChunk(items=items, dimension=dimension, patience=self._patience)
        with self._changed:
            if self._closed:
                return None
            self._waiting.append(chunk)
            if len(self._waiting) > self._idle and len(self._threads) < self._most:
                self._start_thread()
            self._changed.notify_all()
        return chunk.future

    def close(self, *, seconds: float = CLOSING_SECONDS) -> None:
        """Accept no new chunks, finish queued ones for up to `seconds`, and end all children.

        Chunks that are not encoded by then are refused.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        _join(threads, seconds)
        self.kill()
        _join(threads, ENDING_SECONDS)

    def kill(self) -> None:
        """Accept no new chunks and kill all children; unanswered chunks are refused."""
        with self._changed:
            self._closed = self._killed = True
            self._changed.notify_all()
            processes = list(self._processes)
        for process in processes:
            process.kill()

    # The thread of one child -------------------------------------------------------------

    def _start_thread(self, *, awaited: bool = False) -> None:
        thread = threading.Thread(target=self._serve, args=(awaited,), name="encoding", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _serve(self, awaited: bool) -> None:
        process = self._started(awaited=awaited)
        while process or self._last_hope():
            chunk = self._next(idle=process is not None)
            if chunk is None:
                break
            process = process or self._started()
            if process is None:
                chunk.future.set_exception(_cannot_encode())
            elif not self._encode(process, chunk):
                process = self._started()
        if process is not None:
            self._end(process)
        with self._changed:
            self._threads.discard(threading.current_thread())

    def _started(self, *, awaited: bool = False) -> EncoderProcess | None:
        """Start a child and wait until it is warm; returns None if it ends before that."""
        begun = monotonic()
        process = EncoderProcess(self.folder, niceness=self._niceness, awaited=awaited)
        with self._changed:
            self._processes.add(process)
            if self._killed:
                process.kill()
        try:
            process.wait_until_warm(seconds=self._starting_seconds)
        except OSError as error:
            self._forget(process)
            log.error("an encoding child cannot be started", extra={"cause": str(error)})
            self._note_failure(str(error), begun)
            return None
        with self._changed:
            self._warm, self._failure = self._warm + 1, ""
            self._changed.notify_all()
        return process

    def _last_hope(self) -> bool:
        """Whether no child is warm: then this thread stays, although its own child failed."""
        with self._changed:
            return not self._warm

    def _next(self, *, idle: bool) -> EncodingChunk | None:
        """Wait for a chunk; returns None once the pool is closed and no chunk waits."""
        with self._changed:
            while True:
                self._idle += idle
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._idle -= idle
                if not self._waiting:
                    return None
                chunk = self._waiting.popleft()
                if chunk.deaths or chunk.future.set_running_or_notify_cancel():
                    return chunk

    def _encode(self, process: EncoderProcess, chunk: EncodingChunk) -> bool:
        """Encode a chunk; returns false if the child has died."""
        try:
            encoded_items = process.encode(chunk)
        except OSError as error:
            log.warning("an encoding child is replaced", extra={"cause": str(error)})
            self._end(process)
            chunk.deaths, chunk.late = chunk.deaths + 1, chunk.late + process.late
            if chunk.hopeless or self._killed:
                chunk.future.set_exception(_cannot_encode())
            else:
                with self._changed:
                    self._waiting.appendleft(chunk)
                    self._changed.notify_all()
            return False
        except Exception as error:  # a defect: the waiting client must get an error
            log.exception("defect in an encoding thread")
            chunk.future.set_exception(error)
        else:
            chunk.future.set_result(encoded_items)
        return True

    def _end(self, process: EncoderProcess) -> None:
        with self._changed:
            self._warm -= 1
        self._forget(process)

    def _forget(self, process: EncoderProcess) -> None:
        process.close()
        with self._changed:
            self._processes.discard(process)

    def _note_failure(self, cause: str, begun: float) -> None:
        """After a failed start, refuse chunks submitted before `begun` unless a child is warm.

        Later chunks wait for the next start, which may succeed.
        """
        with self._changed:
            self._failure = cause
            self._changed.notify_all()
            refused = [
                chunk for chunk in self._waiting if chunk.submitted <= begun and not self._warm
            ]
            for chunk in refused:
                self._waiting.remove(chunk)
        for chunk in refused:
            if chunk.deaths or chunk.future.set_running_or_notify_cancel():
                chunk.future.set_exception(_cannot_encode())


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Wait for all threads to end, for at most `seconds` in total."""
    deadline = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


def _cannot_encode() -> NotReady:
    return NotReady("texts cannot be encoded at the moment")


class LabelEncoding:
    """The encoder pool of the served bundle. Only the event loop may call `encode`."""

    def __init__(
        self, loaded: LoadedBundle, *, processes: int, share: float, patience: float
    ) -> None:
        """Start the first of at most `processes` children.

        On a busy machine each gets at least `share` of a core. A chunk may take `patience` seconds.
        """
        self._processes, self._niceness, self._patience = processes, niceness_of(share), patience
        self._fingerprint = loaded.representer.fingerprint
        self._pool = self._pool_for(loaded)

    @property
    def warm(self) -> bool:
        """Whether a child is warm, so that encoding need not wait for a start."""
        return self._pool.warm

    def wait_until_warm(self) -> None:
        """Wait until the first child is warm; raises `NotReady` if it cannot be started."""
        self._pool.wait_until_warm()

    @contextmanager
    def switched_to(self, loaded: LoadedBundle) -> Iterator[None]:
        """Warm a child for another bundle; use it once the block has switched to the bundle.

        Raises `NotReady` if none can be started.
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
        self, loaded: LoadedBundle, items: Sequence[Posted], needed: Sequence[bool]
    ) -> list[EncodedItem | None]:
        """Encode the items that are `needed`; the others get None.

        Chunks are small, and a request submits at most one per process at a time, so a thousand
        labels do not delay another request. After a reload, items of the former bundle get None as
        well. Raises `NotReady` if children keep dying or do not answer, and `DeadlineExceeded` if a
        chunk takes longer than the patience.
        """
        encoded_items: list[EncodedItem | None] = [None] * len(items)
        pool, dimension = self._pool, loaded.encoder.dimension
        if loaded.representer.fingerprint != self._fingerprint:
            return encoded_items
        places = [place for place, is_needed in enumerate(needed) if is_needed]
        running: deque[tuple[Sequence[int], asyncio.Future[list[EncodedItem]]]] = deque()

        async def finish_first() -> None:
            chunk, future = running[0]
            try:
                async with asyncio.timeout(self._patience):
                    encoded_chunk = await future
            except TimeoutError as error:
                raise DeadlineExceeded("texts waited too long to be encoded; try again") from error
            for place, encoded in zip(chunk, encoded_chunk, strict=True):
                encoded_items[place] = encoded
            running.popleft()

        try:
            for start in range(0, len(places), CHUNK_ITEMS):
                if len(running) == self._processes:
                    await finish_first()
                chunk = places[start : start + CHUNK_ITEMS]
                future = pool.submit([items[place] for place in chunk], dimension=dimension)
                if future is not None:
                    running.append((chunk, asyncio.wrap_future(future)))
            while running:
                await finish_first()
        finally:  # after an error, cancel the chunks not begun
            for _, unfinished in running:
                unfinished.cancel()
        return encoded_items

    def close(self) -> None:
        """Finish queued chunks for up to a few seconds, then end the processes."""
        self._pool.close()

    def kill(self) -> None:
        """End the processes at once."""
        self._pool.kill()

    def _pool_for(self, loaded: LoadedBundle) -> EncoderPool:
        return EncoderPool(
            loaded.bundle.folder,
            most=self._processes,
            niceness=self._niceness,
            patience=self._patience,
        )
