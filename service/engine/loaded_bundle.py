"""A bundle as it is served: its encoder, its predictor, and a memory that follows the label log."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import UseBundle
from service.core.encoding.encoder import Encoder, OnnxEncoder, open_query_encoder
from service.core.encoding.representer import Representer, open_representer
from service.core.errors import LogError
from service.core.held_events import held_version
from service.core.index.devices import ScanDevice
from service.core.label_log import LabelLog
from service.core.label_log.maintenance.recover import explained
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.prediction.query_cache import QueryCache
from service.core.prediction.reranking.reranker import open_reranker
from service.core.replay import replayed
from service.core.types import DeviceName, Event, PredictOptions
from service.engine.log_references import LogReferences
from service.settings import EngineSettings

WARM_UP_SEARCHES = 64  # per thread, with keys spread over the whole bundle
_REPLAY_EVENTS = 1000  # applied and published together

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class LoadedBundle:
    """One open bundle with everything that answers from it."""

    bundle: Bundle
    encoder: Encoder  # of labels and posted texts, and of queries unless the bundle has another
    representer: Representer
    cache: QueryCache
    predictor: Predictor
    memory: KnowledgeMemory

    @property
    def name(self) -> str:
        """The bundle's name."""
        return self.bundle.manifest.name

    def options(self, base: PredictOptions, **requested: Any) -> PredictOptions:
        """`base` with what is requested, or the bundle's defaults; see `Manifest.options`."""
        return self.bundle.manifest.options(base, **requested)

    def apply(self, events: Iterable[Event], *, threads: int = 1) -> UseBundle | None:
        """Apply events of the label log; returns the last request to serve another bundle, if any.

        Texts of events that another encoder or combiner wrote are encoded again, in `threads`
        threads. Raises `LogCorrupt`.
        """
        reload_request, events = None, iter(events)
        with ThreadPoolExecutor(threads) as pool:
            while page := list(islice(events, _REPLAY_EVENTS)):
                foreign = any(event.encoder != self.representer.fingerprint for event in page)
                each = pool.map if foreign and threads > 1 else map
                changes = list(each(lambda event: replayed(event, self.representer), page))
                self.memory.apply(changes)
                for change in changes:
                    if isinstance(change, UseBundle):
                        reload_request = change
        return reload_request

    def warm_up(
        self, submit: Callable[[Callable[[], None]], Future[None]], *, threads: int
    ) -> None:
        """Answer a query on each of so many threads, to which `submit` hands a function.

        First calls allocate memory, first searches read pages from disk, and a broken model raises
        here and not at the first request.
        """
        barrier = threading.Barrier(threads)
        if self.memory.view.items is not None:
            self.memory.view.items.base.prepare()
        view, options = self.memory.view, self.options(PredictOptions())
        keys = self.bundle.keys
        queries = keys[:: max(1, len(keys) // WARM_UP_SEARCHES)].astype(np.float32)

        def answer() -> None:
            barrier.wait()
            self.predictor.predict(view, ["warm-up"], options)
            view.retrieve(queries, depth=options.depth)

        for future in [submit(answer) for _ in range(threads)]:
            future.result()


def load_bundle(
    folder: Path,
    label_log: LabelLog | None,
    settings: EngineSettings,
    *,
    device: ScanDevice | None = None,
    until: int | None = None,
) -> LoadedBundle:
    """Verify and load a bundle; its memory holds the log up to the newest event or `until`.

    Without a log it holds the bundle alone. Its rows are searched and its texts encoded on
    `device`, or on the processor (None). Raises `BundleError`, `DeviceUnavailable`, `LogError`
    where the log lacks events that the bundle holds, and `OtherData` where it was begun for other
    data, unless the settings allow that.
    """
    name: DeviceName = "cpu" if device is None else device.name
    bundle = open_bundle(folder, device=device)
    facts = bundle.manifest
    log.info("bundle verified", extra={"bundle": facts.name, "rows": len(bundle.keys)})
    encoder = OnnxEncoder(bundle.folder, facts.encoder, device=name)
    cache = QueryCache(settings.cached_queries)
    loaded = LoadedBundle(
        bundle=bundle,
        encoder=encoder,
        representer=open_representer(encoder, bundle),
        cache=cache,
        predictor=Predictor(
            open_query_encoder(bundle, encoder, device=name),
            tau=facts.predictor.tau,
            cache=cache,
            reranker=open_reranker(bundle),
        ),
        memory=KnowledgeMemory(
            bundle,
            _memory_limits(settings),
            version=0 if label_log is None else held_version(bundle.manifest, label_log),
        ),
    )
    if label_log is not None:
        _replay(loaded, label_log, until=until, settings=settings)
    return loaded


def _replay(
    loaded: LoadedBundle, label_log: LabelLog, *, until: int | None, settings: EngineSettings
) -> None:
    references = LogReferences(loaded.bundle)
    events = label_log.read(after=loaded.memory.view.version, until=until)
    try:
        loaded.apply(references.watched(events), threads=settings.threads)
    except LogError as error:
        raise explained(label_log, error) from error
    references.report(allowed=settings.other_data)
    log.info("log replayed", extra={"version": loaded.memory.view.version})


def require_same_data(bundle: Bundle, label_log: LabelLog) -> None:
    """Raise `OtherData` or `LogError` as `load_bundle` does, without loading anything."""
    references = LogReferences(bundle)
    try:
        deque(
            references.watched(label_log.read(after=held_version(bundle.manifest, label_log))),
            maxlen=0,
        )
    except LogError as error:
        raise explained(label_log, error) from error
    references.report(allowed=False)


def _memory_limits(settings: EngineSettings) -> MemoryLimits:
    limits = MemoryLimits(
        live_rows=settings.live_rows,
        seal_rows=settings.seal_rows,
        seal_items=settings.seal_items,
    )
    if settings.live_bytes is None:
        return limits
    return replace(limits, live_bytes=settings.live_bytes)
