"""What one bundle needs to be served: encoder, predictor, and a memory that follows the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.encoding.encoder import Encoder, OnnxEncoder
from service.core.encoding.representer import Representer, open_representer
from service.core.errors import LogError
from service.core.label_log import USE_BUNDLE, LabelLog
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.prediction.query_cache import QueryCache
from service.core.replay import replayed
from service.core.types import Event, PredictOptions
from service.settings import EngineSettings

WARM_UP_SEARCHES = 64  # a thread, spread over all keys
_REPLAY_EVENTS = 1000

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class Serving:
    """One opened bundle with everything that answers from it."""

    bundle: Bundle
    encoder: Encoder
    representer: Representer
    cache: QueryCache
    predictor: Predictor
    memory: KnowledgeMemory

    @property
    def name(self) -> str:
        """The bundle's name."""
        return self.bundle.manifest.name

    def options(self, base: PredictOptions, **given: Any) -> PredictOptions:
        """Options with the bundle's defaults for lambda and b where none were given."""
        facts = self.bundle.manifest.predictor
        defaults = {"memorization": facts.memorization, "depth": facts.depth}
        chosen = {name: value for name, value in given.items() if value is not None}
        return replace(base, **{**defaults, **chosen})

    def follow(self, events: Iterable[Event], *, threads: int = 1) -> Event | None:
        """Apply events in order; returns the last that asks for another bundle, if any did.

        Events that another encoder or combiner wrote are made again, in `threads` threads.
        """
        wish, events = None, iter(events)
        with ThreadPoolExecutor(threads) as pool:
            while page := list(islice(events, _REPLAY_EVENTS)):
                foreign = any(event.encoder != self.representer.fingerprint for event in page)
                each = pool.map if foreign and threads > 1 else map
                self.memory.apply(list(each(lambda event: replayed(event, self.representer), page)))
                wishes = [event for event in page if event.kind == USE_BUNDLE]
                wish = wishes[-1] if wishes else wish
        return wish

    def warm_up(self, pool: ThreadPoolExecutor, *, threads: int) -> None:
        """Answer on every thread: first calls allocate, first searches fault pages in, and a
        broken model shows here."""
        barrier = threading.Barrier(threads)
        view, options = self.memory.view, self.options(PredictOptions())
        keys = self.bundle.keys
        spread = keys[:: max(1, len(keys) // WARM_UP_SEARCHES)].astype(np.float32)

        def answer() -> None:
            barrier.wait()
            self.predictor.predict(view, ["warm-up"], options)
            view.retrieve(spread, depth=options.depth)

        for future in [pool.submit(answer) for _ in range(threads)]:
            future.result()


def open_serving(
    folder: Path, label_log: LabelLog, settings: EngineSettings, *, until: int | None = None
) -> Serving:
    """Verify a bundle and make what serves it, its memory at the log's newest event or `until`.

    Raises `BundleError`, and `LogError` where the log lacks events that the bundle holds.
    """
    bundle = open_bundle(folder)
    facts = bundle.manifest
    log.info("bundle verified", extra={"bundle": facts.name, "rows": len(bundle.keys)})
    encoder = OnnxEncoder(bundle.folder, facts.encoder)
    cache = QueryCache(settings.cached_queries)
    serving = Serving(
        bundle=bundle,
        encoder=encoder,
        representer=open_representer(encoder, bundle),
        cache=cache,
        predictor=Predictor(encoder, tau=facts.predictor.tau, cache=cache),
        memory=KnowledgeMemory(
            bundle,
            MemoryLimits(live_rows=settings.live_rows, seal_rows=settings.seal_rows),
            version=held_version(bundle, label_log),
        ),
    )
    events = label_log.read(after=serving.memory.view.version, until=until)
    serving.follow(events, threads=settings.threads)
    log.info("log replayed", extra={"version": serving.memory.view.version})
    return serving


def held_version(bundle: Bundle, label_log: LabelLog) -> int:
    """The last of the log's events that a bundle holds already: those of the log that it was
    taken from, none of any other's."""
    facts = bundle.manifest
    if facts.log != label_log.id:
        return 0
    newest = label_log.last_sequence()
    if newest < facts.memory.version:
        raise LogError(
            f"{label_log.place} ends at event {newest}, but the bundle {facts.name} holds its"
            f" events up to {facts.memory.version}: the log was cut or is an older copy"
        )
    return facts.memory.version
