"""Opens what a service with the same bundle and state would answer from, for reading only."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from service.core.errors import LogError
from service.core.index.protocol import Segment
from service.core.label_log import LabelLog, open_log
from service.core.memory.segment_store import SegmentStore
from service.core.types import Halves
from service.engine.bundle_directory import BundleDirectory
from service.engine.devices import open_device, segments_folder
from service.engine.loaded_bundle import LoadedBundle, load_bundle
from service.settings import EngineSettings


@dataclass(frozen=True, kw_only=True)
class LogPlace:
    """The label log of a state, and its newest event when this was asked."""

    state: Path | str
    id: str
    newest: int
    served: Path  # the bundle that a service with this state and the given bundle serves


def find_log(state: str, bundle: Path) -> LogPlace:
    """Look at the log of a state folder or PostgreSQL URL; raises `LogError` if there is none."""
    place = state if "://" in state else Path(state)
    with closing(open_log(place, create=False)) as label_log:
        directory = BundleDirectory(folder=bundle.absolute().parent, started_with=bundle)
        return LogPlace(
            state=place,
            id=label_log.id,
            newest=label_log.last_sequence(),
            served=directory.current(label_log),
        )


def open_memory(
    bundle: Path, log: LogPlace | None, settings: EngineSettings, *, until: int
) -> LoadedBundle:
    """Load a bundle and the events of a log up to `until`; without a log the bundle alone.

    Full blocks of live rows and of posted items are searched through the segments that a service
    has built for them, so that answers are equal to that service's; those without are scanned.
    """
    device = open_device(settings.device)
    if log is None:
        return load_bundle(bundle, None, settings, device=device)
    with closing(open_log(log.state, create=False)) as label_log:
        if label_log.id != log.id:
            raise LogError(f"{label_log.place} was replaced while this command started")
        loaded = load_bundle(bundle, label_log, settings, device=device, until=until)
        if device is None:
            _attach_segments(loaded, label_log, settings)
    return loaded


def _attach_segments(loaded: LoadedBundle, label_log: LabelLog, settings: EngineSettings) -> None:
    store = SegmentStore(segments_folder(label_log, settings))
    parameters, memory = loaded.bundle.manifest.index.parameters(), loaded.memory

    def built(vectors: Halves) -> Segment | None:
        key = store.key(vectors, parameters)
        return store.find(key, parameters, shape=vectors.shape, discard_damaged=False)

    for plan in list(memory.view.unsealed_plans()):
        segment = built(memory.view.vectors(plan.rows)) if len(plan.rows) else None
        if segment is not None or not len(plan.rows):
            memory.attach(memory.seal(plan, segment))
    if memory.view.items is None:
        return
    vectors_of = memory.view.items.posted.vectors.read
    for plan in list(memory.view.unsealed_item_plans()):
        segment = built(vectors_of(plan.rows)) if len(plan.rows) else None
        if segment is not None or not len(plan.rows):
            memory.attach_items(plan, segment)
