"""A pool of child processes that encode what is posted in bulk.

A child that dies is replaced, and so is one that does not answer in its time: it is killed, and its
chunk goes to another child.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from time import monotonic

from service.core.changes import Item
from service.core.encoding.representer import EncodedItem
from service.core.errors import NotReady
from service.engine.encoder_process import EncoderProcess
from service.engine.encoding_chunk import EncodingChunk

# Loading a model takes some two seconds of a core, of which a busy machine leaves a few percent.
STARTING_SECONDS = 60.0
WATCH_SECONDS = 0.25  # how often children are looked after
CLOSING_SECONDS = 3.0  # for what is being encoded when the pool is closed; then children are killed
ENDING_SECONDS = 1.0  # for the threads of killed children

log = logging.getLogger("keymatch")


class EncoderPool:
    """Child processes for one bundle's encoder over one queue, each served by a thread.

    One child is started at once, and another one when all are busy, up to `most`. Chunks go to any
    child that is warm, so none waits for a child that is still starting while another one is free.
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

        A chunk is waited for during `patience` seconds. A child is late over it after a quarter of
        that and 0.1 s a text, and late at its start after `starting_seconds`.
        """
        self.folder = folder
        self.most = most
        self._niceness = niceness
        self._patience, self._starting_seconds = patience, starting_seconds
        self._changed = threading.Condition()
        self._waiting: deque[EncodingChunk] = deque()
        self._threads: set[threading.Thread] = set()
        self._warm = self._idle = 0  # children; idle ones are warm and have nothing to encode
        self._failure = ""  # why the last child could not be started
        self._processes: set[EncoderProcess] = set()
        self._closed = self._killed = False
        self._ended = threading.Event()
        with self._changed:
            self._start_thread(awaited=True)
        threading.Thread(target=self._watch, name="watch-encoding", daemon=True).start()

    @property
    def warm(self) -> bool:
        """Whether there is a child that can encode at once, or soon."""
        return self._warm > 0

    def wait_until_warm(self) -> None:
        """Wait for the first child; raises `NotReady` where it cannot be started."""
        with self._changed:
            self._changed.wait_for(lambda: self._warm or self._failure)
            if not self._warm:
                raise NotReady(f"texts cannot be encoded: {self._failure}")

    def submit(self, items: Sequence[Item], *, dimension: int) -> Future[list[EncodedItem]] | None:
        """Encode items into rows [n, `dimension`]; None where the pool is closed.

        The future raises `NotReady` where no child can be started, or where several children have
        died over these items or did not answer. One that is cancelled is skipped.
        """
        chunk = EncodingChunk(items=items, dimension=dimension, patience=self._patience)
        with self._changed:
            if self._closed:
                return None
            self._waiting.append(chunk)
            if len(self._waiting) > self._idle and len(self._threads) < self.most:
                self._start_thread()
            self._changed.notify_all()
        return chunk.future

    def close(self, *, seconds: float = CLOSING_SECONDS) -> None:
        """Take nothing more, encode what was taken for so many seconds, and end all children.

        What is not encoded by then is refused.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        _join(threads, seconds)
        self.kill()
        _join(threads, ENDING_SECONDS)

    def kill(self) -> None:
        """Take nothing more and kill all children; what they have not answered is refused."""
        with self._changed:
            self._closed = self._killed = True
            self._changed.notify_all()
            processes = list(self._processes)
        for process in processes:
            process.kill()
        self._ended.set()

    def _watch(self) -> None:
        """Kill children that are late; their own threads wait for them without a limit."""
        while not self._ended.wait(WATCH_SECONDS):
            with self._changed:
                processes = list(self._processes)
            for process in processes:
                process.kill_if_late()

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
        """A warm child; None where it ended before."""
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
        """Whether a thread without a child must stay: no other thread could take a chunk."""
        with self._changed:
            return not self._warm

    def _next(self, *, idle: bool) -> EncodingChunk | None:
        """Wait for a chunk; None once the pool is closed and nothing waits."""
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
        """Encode a chunk; false where the child has died."""
        try:
            encoded_items = process.encode(
                chunk.items, dimension=chunk.dimension, seconds=chunk.seconds
            )
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
        except Exception as error:  # a defect: whoever waits must not hang
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
        """Refuse what waited when this start was `begun`, unless another child is warm.

        What was submitted later has not been tried: what failed may have been mended meanwhile.
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
    """Wait for the end of all threads, for at most so many seconds altogether."""
    deadline = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


def _cannot_encode() -> NotReady:
    return NotReady("texts cannot be encoded at the moment")
