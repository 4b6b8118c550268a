"""A bundle being served: its encoder, its predictor, and a memory that follows the label log."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import monotonic

import numpy as np

from service.core.bundle import manifest
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.manifest import Manifest
from service.core.changes import (
    ChangeLabel,
    DeleteInstance,
    DeleteItem,
    DeleteLabel,
    PutInstance,
    PutItem,
    PutLabel,
    UseBundle,
)
from service.core.encoding.encoder import (
    DeferredEncoder,
    Encoder,
    OnnxEncoder,
    require_full_length,
)
from service.core.encoding.representer import Representer, open_representer
from service.core.errors import BundleUnsupported, KeymatchError, LogError, OtherData, echoed
from service.core.index.devices import ScanDevice
from service.core.index.key_parts import KeyShare
from service.core.index.libraries import load_library
from service.core.label_filter import Condition, LabelFilter
from service.core.label_log import LabelLog
from service.core.label_log.maintenance import explained
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.shards import Shards
from service.core.options import complete_options
from service.core.prediction.predictor import Predictor, QueryCache
from service.core.processes.resources import give_back_free_pages
from service.core.replay import held_version, replayed
from service.core.types import DeviceName, Event
from service.settings import EngineSettings

# Opens the shards of a bundle for a front; returns when all answer.
OpenShards = Callable[[Bundle, LabelLog, EngineSettings], Shards]

WARM_UP_SEARCHES = 64  # per thread, with keys spread over the whole bundle
_REPLAY_EVENTS = 1000  # applied and published together
FEW = 2  # so many unknown labels are always accepted: a new training may drop some
SHOWN = 3  # most unknown labels that a message names

# A filter that every label passes.
EVERY_LABEL = LabelFilter(
    none=(Condition(field="warm-up", operator="exists", values=(True,), kind="boolean"),)
)

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class LoadedBundle:
    """One open bundle with everything needed to answer from it."""

    bundle: Bundle
    encoder: Encoder
    representer: Representer
    cache: QueryCache
    predictor: Predictor
    memory: KnowledgeMemory

    def apply(
        self, events: Iterable[Event], *, threads: int = 1, newest: int = 0
    ) -> UseBundle | None:
        """Apply events of the label log; returns the last request to serve another bundle, if any.

        Texts are encoded again, in `threads` threads, if another encoder or combiner encoded them.
        If the number of the `newest` event is known, a shard keeps only views that are new then.
        Raises `LogCorrupt`.
        """
        reload_request, events = None, iter(events)
        with ThreadPoolExecutor(threads) as pool:
            while page := list(islice(events, _REPLAY_EVENTS)):
                foreign = any(event.encoder != self.representer.fingerprint for event in page)
                each = pool.map if foreign and threads > 1 else map
                changes = list(each(lambda event: replayed(event, self.representer), page))
                self.memory.apply(changes, newest=newest)
                for change in changes:
                    if isinstance(change, UseBundle):
                        reload_request = change
        return reload_request

    def warm_up(
        self,
        submit: Callable[[Callable[[], None]], Future[None]],
        *,
        threads: int,
        seconds: float,
    ) -> None:
        """Answer a query on each of `threads` threads; `submit` runs a function on one of them.

        The first calls allocate memory, and the first searches read pages from disk. One answer is
        filtered, since the first filter reads the metadata and the votes of all rows. Raises
        `BundleUnsupported` for a broken model, and if there is no answer within `seconds`.
        """
        barrier = threading.Barrier(threads)
        self.memory.view.labels.base_identities.prepare()
        self.bundle.dictionary.prepare()
        if self.memory.view.items is not None:
            self.memory.view.items.base.prepare()
        view, options = self.memory.view, complete_options(self.bundle.manifest)

        def answer() -> None:
            barrier.wait(seconds)
            self.predictor.predict(view, ["warm-up"], options)
            self.predictor.predict(self.memory.only(view, EVERY_LABEL), ["warm-up"], options)
            if view.keys.held:
                self.warm_up_search()

        late = monotonic() + seconds
        try:
            for future in [submit(answer) for _ in range(threads)]:
                future.result(late - monotonic())
        except KeymatchError:
            raise
        except (TimeoutError, threading.BrokenBarrierError) as error:
            raise BundleUnsupported(
                f"{self.bundle.folder} had no first answers within {seconds:.0f} s"
                " (engine.warm_up_seconds)"
            ) from error
        except Exception as error:  # errors of ONNX Runtime and faiss have no common base class
            raise BundleUnsupported(
                f"{self.bundle.folder} cannot answer a query: {error!r}"
            ) from error

    def warm_up_search(self) -> None:
        """Search for keys that are spread over the bundle, which reads its graph from disk."""
        rows = self.memory.view.base.alive_rows()  # a shard may hold no other keys
        some = rows[:: max(1, len(rows) // WARM_UP_SEARCHES)]
        queries = self.memory.view.vectors(some).astype(np.float32)
        depth = self.bundle.manifest.predictor.depth
        self.memory.view.retrieve(queries, depth=depth)


class LogReferences:
    """Finds labels that the log uses but has not posted, and checks that the bundle has them.

    Names, fingerprints and some labels change with every training, so they cannot tell that a log
    was begun for other data. The log's clicks, changes and deletions can: a label that they name,
    and that the log has not posted, must come from the bundle.

    `clicks` counts clicks on unknown labels. `void_items` counts writes of items that have no
    effect, because the bundle has no item memory.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Check the labels against this bundle."""
        self._bundle = bundle
        self.known: set[str] = set()
        self.unknown: dict[str, None] = {}  # in the order of the log
        self.clicks = 0
        self.void_items = 0
        self._posted: set[str] = set()
        self._accepted = False  # whether a reload of this bundle is in the log

    @property
    def other_data(self) -> bool:
        """Whether the log was begun for other data, and nobody has accepted the bundle for it."""
        return (
            not self._accepted and len(self.unknown) > FEW and len(self.unknown) > len(self.known)
        )

    def watched(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events, and note the labels of each."""
        for event in events:
            self._note(event)
            yield event

    def report(self, *, allowed: bool) -> None:
        """Log unknown labels and void items. Raises `OtherData` for other data unless `allowed`."""
        if self.void_items:
            log.warning(
                f"the bundle {self._bundle.manifest.name} has no item memory: {self.void_items}"
                " writes of items in the log have no effect while it is served",
                extra={"bundle": self._bundle.manifest.name, "void_items": self.void_items},
            )
        if not self.unknown:
            return
        named = f"{len(self.unknown)} of the {len(self.unknown) + len(self.known)} labels"
        name = self._bundle.manifest.name
        if self.other_data and not allowed:
            shown = ", ".join(map(echoed, islice(self.unknown, SHOWN)))
            raise OtherData(
                f"the label log was begun for other data: {named} that its clicks, changes and"
                f" deletions take for granted are unknown to the bundle {name}, such as {shown};"
                " use the state that belongs to this bundle, or allow it (serve --other-data, or"
                ' "other_data": true in a reload), and what the log says of these labels counts'
                " for nothing"
            )
        log.warning(
            f"{named} that clicks, changes and deletions of the log take for granted are unknown to"
            f" the bundle {name}; {self.clicks} clicks lose votes",
            extra={"bundle": name, "unknown_labels": len(self.unknown), "clicks": self.clicks},
        )

    def _note(self, event: Event) -> None:
        body = event.body
        if event.kind == PutLabel.kind:
            self._posted.add(body.get("id", ""))
        elif event.kind == PutInstance.kind:
            known = [self._is_known(label_id) for label_id in body.get("labels", ())]
            self.clicks += not all(known)
        elif event.kind == DeleteInstance.kind:
            for label_id in body.get("labels", ()):
                self._is_known(label_id)
        elif event.kind in (PutItem.kind, DeleteItem.kind):
            self.void_items += self._bundle.items is None
        elif event.kind in (ChangeLabel.kind, DeleteLabel.kind):
            self._is_known(body.get("id", ""))
        elif event.kind == UseBundle.kind and body.get("bundle") == self._bundle.folder.name:
            self._accepted = True

    def _is_known(self, label_id: str) -> bool:
        if label_id in self._posted or label_id in self.known:
            return True
        if label_id in self.unknown:
            return False
        found = self._bundle.label_ids.find(label_id) is not None
        if found:
            self.known.add(label_id)
        else:
            self.unknown[label_id] = None
        return found


def load_bundle(
    folder: Path,
    label_log: LabelLog | None,
    settings: EngineSettings,
    *,
    device: ScanDevice | None = None,
    until: int | None = None,
    trial: Callable[[Bundle], None] | None = None,
    share: KeyShare | None = None,
    open_shards: OpenShards | None = None,
) -> LoadedBundle:
    """Verify and load a bundle; its memory holds the log up to the newest event or `until`.

    Without a log it holds the bundle alone. Searching and encoding use `device`, or the CPU (None).
    `trial` is called on the verified bundle before it is loaded, and may raise to refuse it. With a
    `share` of the keys, the memory is a shard; with `open_shards`, it is the front of those that
    are opened. Raises `BundleError`, `DeviceUnavailable`, `ShardsUnavailable`, `LogError` if the
    log lacks events that the bundle holds, and `OtherData` if it was begun for other data, unless
    allowed.
    """
    name: DeviceName = "cpu" if device is None else device.name
    parts: Collection[int] | None = None
    if share is not None:
        require_parts(manifest.read(folder), share.count)
        parts = (share.index,)
    bundle = open_bundle(folder, device=device, parts=parts if open_shards is None else ())
    facts = bundle.manifest
    log.info("bundle verified", extra={"bundle": facts.name, "rows": facts.memory.rows})
    if trial is not None:
        trial(bundle)
    encoder: Encoder
    if share is None:
        encoder = OnnxEncoder(bundle.folder, facts.encoder, device=name)
        require_full_length(bundle, encoder)
    else:  # its fronts have tried it
        encoder = DeferredEncoder(bundle.folder, facts.encoder)
    shards = None
    if open_shards is not None and label_log is not None:
        shards = open_shards(bundle, label_log, settings)
    cache = QueryCache(settings.cached_queries)
    memory = KnowledgeMemory(
        bundle,
        _memory_limits(settings),
        version=0 if label_log is None else held_version(bundle.manifest, label_log),
        half_life=settings.click_half_life,
        share=share,
        shards=shards,
    )
    loaded = LoadedBundle(
        bundle=bundle,
        encoder=encoder,
        representer=open_representer(encoder, bundle),
        cache=cache,
        predictor=Predictor.of(bundle, encoder, cache=cache, only=memory.only),
        memory=memory,
    )
    if label_log is not None:
        _replay(loaded, label_log, until=until, settings=settings)
    give_back_free_pages()  # of the arrays that were verified
    return loaded


def _replay(
    loaded: LoadedBundle, label_log: LabelLog, *, until: int | None, settings: EngineSettings
) -> None:
    references = LogReferences(loaded.bundle)
    events = label_log.read(after=loaded.memory.view.version, until=until)
    try:
        newest = label_log.last_sequence() if until is None else until
        loaded.apply(references.watched(events), threads=settings.threads, newest=newest)
    except LogError as error:
        raise explained(label_log, error) from error
    references.report(allowed=settings.other_data)
    log.info("log replayed", extra={"version": loaded.memory.view.version})


def require_parts(facts: Manifest, shards: int) -> None:
    """Raise `BundleUnsupported` if a bundle is in another number of parts than `shards`."""
    parts = len(facts.key_parts)
    if parts not in (0, shards):
        raise BundleUnsupported(
            f"the bundle {facts.name} is in {parts} parts, which cannot be divided into"
            f" {shards}: serve it with --shards {parts}, or export it again"
        )


def require_same_data(bundle: Bundle, label_log: LabelLog) -> None:
    """Raise `OtherData` or `LogError` as `load_bundle` does, without loading anything."""
    references = LogReferences(bundle)
    try:
        events = label_log.read(after=held_version(bundle.manifest, label_log))
        deque(references.watched(events), maxlen=0)
    except LogError as error:
        raise explained(label_log, error) from error
    references.report(allowed=False)


def require_same_builder(bundle: Bundle, label_log: LabelLog) -> None:
    """Raise `BundleUnsupported` if this process would seal other graphs than other replicas.

    Replicas on several machines share only the log, and each seals its rows itself. So all must
    have the builder that the bundle names.
    """
    facts = bundle.manifest
    if bundle.device is not None or not label_log.across_machines:
        return
    ours, theirs = load_library(facts.index.library).builder(), facts.index.builder
    if theirs is None:
        log.warning(
            f"the bundle {facts.name} does not say which index library replicas must have; write a"
            " new one (keymatch snapshot)",
            extra={"bundle": facts.name, "builder": ours},
        )
    elif ours != theirs:
        raise BundleUnsupported(
            f"the bundle {facts.name} was built by {theirs}, and this process has {ours}, which"
            " would seal other graphs than other replicas of the label log: install the bundle's"
            " version, or write a new bundle with this one (keymatch snapshot) and serve it in all"
            " replicas"
        )


def _memory_limits(settings: EngineSettings) -> MemoryLimits:
    limits = MemoryLimits(
        live_rows=settings.live_rows,
        seal_rows=settings.seal_rows,
        seal_items=settings.seal_items,
        rule_work=settings.rule_work,
    )
    most = settings.live_bytes
    return limits if most is None else replace(limits, live_bytes=most)
