"""Seals full blocks of live rows: builds their segments in a low-priority child, one by one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import perf_counter

import numpy as np

from service.core.errors import BundleError, KeymatchError, SealError
from service.core.index.protocol import Segment
from service.core.memory.compaction import SegmentPlan
from service.core.memory.segment_source import SegmentSource
from service.core.memory.view import View
from service.core.processes.heaps import give_back_free_pages
from service.core.types import Halves, Rows
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.writer import Writer
from service.telemetry import Telemetry

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds after a failed attempt, doubled each time

COPIED_ROWS = 512  # at a time, some 0.3 ms

# Segments that no view here needs are deleted only when they are so old: another process on this
# machine may be about to open one.
UNUSED_SECONDS = 24 * 3600.0

log = logging.getLogger("keymatch")


class Sealer:
    """A thread that builds the segments of planned merges whenever it is woken."""

    def __init__(
        self,
        *,
        store: SegmentSource,
        writer: Writer,
        loaded: Callable[[], LoadedBundle],
        telemetry: Telemetry,
    ) -> None:
        """Start the thread; `loaded` returns the bundle that is served."""
        self._store, self._writer, self._loaded = store, writer, loaded
        self._telemetry = telemetry
        self._keys: dict[tuple[int, int], str] = {}  # of segments built here, by their rows
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for planned segments."""
        self._woken.set()

    def interrupt(self) -> None:
        """Kill the child that builds a segment, if there is one; called from any thread."""
        self._stopping.set()
        self._store.interrupt()

    def close(self) -> None:
        """Kill the child that builds a segment, if there is one, and stop the thread."""
        self.interrupt()
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            self._woken.wait()
            self._woken.clear()
            try:
                self._seal_all()
                pause = FIRST_PAUSE
            except (SealError, BundleError) as error:
                if self._stopping.is_set():
                    return
                # The rows stay live and are searched exactly: slower, but with the same answers.
                log.error("live rows cannot be sealed", extra={"cause": str(error)})
                self._stopping.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                self._woken.set()
            except KeymatchError:
                return  # the writer has stopped
            except Exception:
                log.exception("defect in the sealer")
                return

    def _seal_all(self) -> None:
        while not self._stopping.is_set():
            loaded = self._loaded()
            # The newest plan each time: a larger plan may have taken in the next.
            plan = next(loaded.memory.view.unsealed_plans(), None)
            if plan is None:
                self._store.prune(self._keys.values(), older_than=UNUSED_SECONDS)
                return
            self._seal(loaded, plan)

    def _seal(self, loaded: LoadedBundle, plan: SegmentPlan) -> None:
        start = perf_counter()
        view = loaded.memory.view
        key, segment = self._segment(view, plan) if len(plan.rows) else ("", None)
        sealed = loaded.memory.seal(plan, segment)
        if not self._writer.attach(sealed, to=loaded).result():
            return
        self._discard_replaced(plan, key)
        give_back_free_pages()  # the sealed rows and what they were copied to
        seconds = perf_counter() - start
        self._telemetry.seal_seconds.observe(seconds)
        log.info("sealed", extra={"rows": len(plan.rows), "seconds": round(seconds, 2)})

    def _segment(self, view: View, plan: SegmentPlan) -> tuple[str, Segment]:
        parameters = view.bundle.manifest.index.parameters()
        vectors = _vectors(view, plan.rows)
        key = self._store.key(vectors, parameters)
        shape = (len(vectors), vectors.shape[1])
        segment = self._store.find(key, parameters, shape=shape)
        if segment is None:
            self._store.build(key, vectors, parameters)
            segment = self._store.find(key, parameters, shape=shape)
        if segment is None:
            raise SealError("a segment that was just built cannot be opened")
        return key, segment

    def _discard_replaced(self, plan: SegmentPlan, key: str) -> None:
        for (first, stop), old in list(self._keys.items()):
            if plan.first <= first and stop <= plan.stop:
                del self._keys[first, stop]
                if old != key:
                    self._store.discard(old)
        if key:
            self._keys[plan.first, plan.stop] = key


def _vectors(view: View, rows: Rows) -> Halves:
    """The keys [n, d] of `rows` [n], copied in pieces: a copy holds the interpreter's lock."""
    vectors = np.empty((len(rows), view.bundle.keys.shape[1]), np.float16)
    for start in range(0, len(rows), COPIED_ROWS):
        piece = rows[start : start + COPIED_ROWS]
        vectors[start : start + len(piece)] = view.vectors(piece)
    return vectors
