"""Opens, read-only, the memory from which a service with the same bundle and state answers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from service.core.bundle.object_store import is_url
from service.core.errors import LogError
from service.core.index.protocol import Segment
from service.core.label_log import LabelLog, open_log
from service.core.types import Halves
from service.engine.bundle_directory import BundleDirectory
from service.engine.device import open_device, segment_store
from service.engine.loaded_bundle import LoadedBundle, load_bundle
from service.settings import EngineSettings


@dataclass(frozen=True, kw_only=True)
class LogPlace:
    """A state's label log, with its newest event at the time of the look-up."""

    state: Path | str
    id: str
    newest: int
    served: Path  # the bundle that a service would serve: the given or a reloaded one


def find_log(state: str, bundle: Path, *, place: str = "") -> LogPlace:
    """Find the log of a state folder or PostgreSQL URL. Raises `LogError` if there is none.

    `place` is the URL of which `bundle` is the copy, if it has one.
    """
    log_place = state if "://" in state else Path(state)
    with closing(open_log(log_place, create=False)) as label_log:
        directory = BundleDirectory.of(bundle, None)
        if is_url(place):  # a reloaded bundle is not fetched only to be named
            name = directory.reloaded(label_log) or bundle.name
            served = bundle if name == bundle.name else bundle.with_name(name)
        else:
            served = directory.current(label_log)
        return LogPlace(
            state=log_place,
            id=label_log.id,
            newest=label_log.last_sequence(),
            served=served,
        )


def open_memory(
    bundle: Path, log: LogPlace | None, settings: EngineSettings, *, until: int
) -> LoadedBundle:
    """Load a bundle and a log's events up to `until`, or the bundle alone without a log.

    Full blocks of live rows and posted items use the segments that a service has built, so answers
    equal that service's. Other blocks are scanned.
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
    parameters, memory = loaded.bundle.manifest.index.parameters(), loaded.memory

    def built(vectors: Halves, folder: str = ".") -> Segment | None:
        store = segment_store(label_log, settings, folder=folder)
        key = store.key(vectors, parameters)
        return store.find(key, parameters, shape=vectors.shape, discard_damaged=False)

    base = memory.view.unbuilt_base_plan()
    if base is not None and len(base.rows):
        segment = built(memory.view.vectors(base.rows), "base")
        if segment is not None:
            memory.attach_base(base, segment)
    for plan in list(memory.view.unsealed_plans()):
        segment = built(memory.view.vectors(plan.rows)) if len(plan.rows) else None
        if segment is not None or not len(plan.rows):
            memory.attach(memory.seal(plan, segment))
    for plan in list(memory.view.unsealed_item_plans()):
        items = memory.view.items
        segment = built(items.posted.vectors.read(plan.rows)) if items and len(plan.rows) else None
        if segment is not None or not len(plan.rows):
            memory.attach_items(plan, segment)
