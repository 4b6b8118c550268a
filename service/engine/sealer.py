"""Builds segments in the background, from full blocks or the bundle's remaining rows.

A full block holds live rows or posted items. A child process of low priority builds each segment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

from service.core.errors import BundleError, KeymatchError, SealError
from service.core.index.compaction import SegmentPlan
from service.core.index.protocol import Segment
from service.core.memory.segment_store import SegmentSource
from service.core.processes.resources import give_back_free_pages
from service.core.types import Halves, Rows
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.writer import Writer
from service.telemetry import Telemetry

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds after a failed attempt, doubled each time

COPIED_ROWS = 512  # per copy, which takes some 0.3 ms

# The age at which a segment without a view in this process is deleted: another process on this
# machine may be about to open a younger one.
UNUSED_SECONDS = 24 * 3600.0

log = logging.getLogger("keymatch")


class Sealer:
    """A thread that, when woken, builds the planned segments one by one."""

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
        # Keys of segments built here, by kind of content, first row, and the row after the last.
        self._keys: dict[tuple[str, int, int], str] = {}
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for planned segments."""
        self._woken.set()

    def interrupt(self) -> None:
        """Kill the child that builds a segment, if there is one. Any thread may call this."""
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
            if not self._seal_next(self._loaded()):
                self._store.prune(list(self._keys.values()), older_than=UNUSED_SECONDS)
                return

    def _seal_next(self, loaded: LoadedBundle) -> bool:
        """Build the segment of one plan; returns False if there is none without a segment."""
        start, memory, view = perf_counter(), loaded.memory, loaded.memory.view
        # Ask for the plans each time: a larger plan may have replaced the next one.
        for plan in view.unsealed_plans():
            key, segment = "", None  # a front's rows are searched by its shards
            if view.keys.held:
                key, segment = self._segment(loaded, plan, view.vectors)
            attach = partial(memory.attach, memory.seal(plan, segment))
            return self._attach(attach, loaded, plan, key, what="rows", start=start)
        for plan in view.unsealed_item_plans():
            assert view.items is not None
            key, segment = self._segment(loaded, plan, view.items.posted.vectors.read)
            attach_items = partial(memory.attach_items, plan, segment)
            return self._attach(attach_items, loaded, plan, key, what="items", start=start)
        return False

    def _attach(
        self,
        attach: Callable[[], bool],
        loaded: LoadedBundle,
        plan: SegmentPlan,
        key: str,
        *,
        what: str,
        start: float,
    ) -> bool:
        """Let the writer attach a segment, and discard the segments that it replaces."""
        if self._writer.attach(attach, to=loaded).result():
            self._discard_replaced(what, plan, key)
            give_back_free_pages()  # of the sealed rows and their copies
            seconds = perf_counter() - start
            self._telemetry.seal_seconds.observe(seconds)
            log.info("sealed", extra={what: len(plan.rows), "seconds": round(seconds, 2)})
        return True

    def _segment(
        self, loaded: LoadedBundle, plan: SegmentPlan, read: Callable[[Rows], Halves]
    ) -> tuple[str, Segment | None]:
        """Find or build the segment of a plan; returns "" and None for a plan without rows."""
        if not len(plan.rows):
            return "", None
        parameters = loaded.bundle.manifest.index.parameters()
        vectors = self._store.matrix((len(plan.rows), loaded.bundle.keys.shape[1]))
        for start in range(0, len(plan.rows), COPIED_ROWS):  # copying holds the GIL
            piece = plan.rows[start : start + COPIED_ROWS]
            vectors[start : start + len(piece)] = read(piece)
        key = self._store.key(vectors, parameters)
        shape = (len(vectors), vectors.shape[1])
        segment = self._store.find(key, parameters, shape=shape)
        if segment is None:
            self._store.build(key, vectors, parameters)
            segment = self._store.find(key, parameters, shape=shape)
        if segment is None:
            raise SealError("a segment that was just built cannot be opened")
        return key, segment

    def _discard_replaced(self, what: str, plan: SegmentPlan, key: str) -> None:
        for kept, old in list(self._keys.items()):
            kind, first, stop = kept
            if kind == what and plan.first <= first and stop <= plan.stop:
                del self._keys[kept]
                if old != key:
                    self._store.discard(old)
        if key:
            self._keys[what, plan.first, plan.stop] = key


class BaseSealer(Sealer):
    """A thread that rebuilds the graph of the bundle's rows once many of them have tombstones.

    That takes minutes for a million rows, so full blocks have another thread.
    """

    def _seal_next(self, loaded: LoadedBundle) -> bool:
        start, view = perf_counter(), loaded.memory.view
        plan = view.unbuilt_base_plan()
        if plan is None:
            return False
        key, segment = self._segment(loaded, plan, view.vectors)
        attach = partial(loaded.memory.attach_base, plan, segment)
        return self._attach(attach, loaded, plan, key, what="rows of the bundle", start=start)


def open_sealers(
    source: Callable[[str], SegmentSource],
    *,
    writer: Writer,
    loaded: Callable[[], LoadedBundle],
    telemetry: Telemetry,
) -> Sequence[Sealer]:
    """Start the threads that build segments; `source` opens the folder of each."""
    return [
        kind(store=source(folder), writer=writer, loaded=loaded, telemetry=telemetry)
        for kind, folder in ((Sealer, "."), (BaseSealer, "base"))
    ]
