"""Seals full blocks of live rows and of posted items, one by one.

A child process of low priority builds their segments.
"""

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

Keys = dict[tuple[int, int], str]  # of segments, by their first row and the one after the last

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
        self._keys: Keys = {}  # of segments built here
        self._item_keys: Keys = {}  # the same, of posted items
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
                # They stay live and are searched exactly: slower, but with the same answers.
                log.error("live rows or posted items cannot be sealed", extra={"cause": str(error)})
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
            view = loaded.memory.view
            # The newest plan each time: a larger plan may have taken in the next.
            plan = next(view.unsealed_plans(), None)
            of_items = next(view.unsealed_item_plans(), None)
            if plan is not None:
                self._seal(loaded, plan)
            elif of_items is not None:
                self._seal_items(loaded, of_items)
            else:
                kept = [*self._keys.values(), *self._item_keys.values()]
                self._store.prune(kept, older_than=UNUSED_SECONDS)
                return

    def _seal(self, loaded: LoadedBundle, plan: SegmentPlan) -> None:
        start = perf_counter()
        key, segment = self._segment(loaded, plan, loaded.memory.view.vectors)
        sealed = loaded.memory.seal(plan, segment)
        if not self._writer.attach(sealed, to=loaded).result():
            return
        self._discard_replaced(self._keys, plan, key)
        give_back_free_pages()  # the sealed rows and what they were copied to
        self._report(plan, perf_counter() - start, what="rows")

    def _seal_items(self, loaded: LoadedBundle, plan: SegmentPlan) -> None:
        start = perf_counter()
        items = loaded.memory.view.items
        assert items is not None
        key, segment = self._segment(loaded, plan, items.posted.vectors.read)
        if not self._writer.attach_items(plan, segment, to=loaded).result():
            return
        self._discard_replaced(self._item_keys, plan, key)
        self._report(plan, perf_counter() - start, what="items")

    def _segment(
        self, loaded: LoadedBundle, plan: SegmentPlan, read: Callable[[Rows], Halves]
    ) -> tuple[str, Segment | None]:
        """The segment of a plan and its key; None and no key for a plan without rows."""
        if not len(plan.rows):
            return "", None
        parameters = loaded.bundle.manifest.index.parameters()
        vectors = _vectors(read, plan.rows, dimension=loaded.bundle.keys.shape[1])
        key = self._store.key(vectors, parameters)
        shape = (len(vectors), vectors.shape[1])
        segment = self._store.find(key, parameters, shape=shape)
        if segment is None:
            self._store.build(key, vectors, parameters)
            segment = self._store.find(key, parameters, shape=shape)
        if segment is None:
            raise SealError("a segment that was just built cannot be opened")
        return key, segment

    def _discard_replaced(self, keys: Keys, plan: SegmentPlan, key: str) -> None:
        for (first, stop), old in list(keys.items()):
            if plan.first <= first and stop <= plan.stop:
                del keys[first, stop]
                if old != key:
                    self._store.discard(old)
        if key:
            keys[plan.first, plan.stop] = key

    def _report(self, plan: SegmentPlan, seconds: float, *, what: str) -> None:
        self._telemetry.seal_seconds.observe(seconds)
        log.info("sealed", extra={what: len(plan.rows), "seconds": round(seconds, 2)})


def _vectors(read: Callable[[Rows], Halves], rows: Rows, *, dimension: int) -> Halves:
    """The keys [n, d] of `rows` [n], copied in pieces: a copy holds the interpreter's lock."""
    vectors = np.empty((len(rows), dimension), np.float16)
    for start in range(0, len(rows), COPIED_ROWS):
        piece = rows[start : start + COPIED_ROWS]
        vectors[start : start + len(piece)] = read(piece)
    return vectors
