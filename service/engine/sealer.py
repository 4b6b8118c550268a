"""Seals full blocks of live rows: builds their segments in a niced child, one after the other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import perf_counter

from service.core.errors import BundleError, KeymatchError, SealError
from service.core.index.protocol import Segment
from service.core.memory.compaction import SegmentPlan
from service.core.memory.segment_store import SegmentStore
from service.core.memory.view import View
from service.engine.loaded_bundle import Serving
from service.engine.writer import Writer
from service.telemetry import Telemetry

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds after a failed attempt, doubled each time

# Others on this machine may still be about to open what this process no longer wants.
FORGOTTEN_SECONDS = 24 * 3600.0

log = logging.getLogger("keymatch")


class Sealer:
    """A thread that looks for planned extents whenever it is woken."""

    def __init__(
        self,
        *,
        store: SegmentStore,
        writer: Writer,
        serving: Callable[[], Serving],
        telemetry: Telemetry,
    ) -> None:
        """Start the thread; `serving` gives what is served at the moment."""
        self._store, self._writer, self._serving = store, writer, serving
        self._telemetry = telemetry
        self._keys: dict[tuple[int, int], str] = {}  # of the segments built here, by their rows
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for work."""
        self._woken.set()

    def close(self) -> None:
        """Stop after the present segment; a child that is at work is killed."""
        self._stopping.set()
        self._store.interrupt()
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
                # The rows stay where they are and are searched exactly: slower, not worse.
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
            serving = self._serving()
            # The newest plan each time: a larger plan may have taken in the next.
            plan = next(serving.memory.view.unsealed_plans(), None)
            if plan is None:
                self._store.prune(self._keys.values(), older_than=FORGOTTEN_SECONDS)
                return
            self._seal(serving, plan)

    def _seal(self, serving: Serving, plan: SegmentPlan) -> None:
        start = perf_counter()
        view = serving.memory.view
        key, segment = self._segment(view, plan) if len(plan.rows) else ("", None)
        if not self._writer.attach(plan, segment, to=serving).result():
            return
        self._discard_replaced(plan, key)
        seconds = perf_counter() - start
        self._telemetry.seal_seconds.observe(seconds)
        log.info("sealed", extra={"rows": len(plan.rows), "seconds": round(seconds, 2)})

    def _segment(self, view: View, plan: SegmentPlan) -> tuple[str, Segment]:
        parameters = view.bundle.manifest.index.parameters()
        vectors = view.vectors(plan.rows)
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
