"""Applies to the memory what other processes have written to the same label log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from service.core.changes import UseBundle
from service.core.label_log import Appending, LabelLog
from service.core.types import Event
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.log_health import LogHealth


class LogFollower:
    """Knows which loaded bundle is served, and brings memories up to the log; writer's thread only.

    `loaded` is the bundle whose memory is served, `newest` the log's newest known event.
    """

    def __init__(
        self,
        label_log: LabelLog,
        loaded: LoadedBundle,
        health: LogHealth,
        *,
        published: Callable[[LoadedBundle], None],
        reload_requested: Callable[[UseBundle], None],
    ) -> None:
        """`published` is called after each new view of the served memory.

        `reload_requested` is called when another process has logged that another bundle is served.
        """
        self.loaded = loaded
        self.newest = loaded.memory.view.version
        self.log_changed = threading.Event()  # others may have written since it was last read
        self._log, self._health = label_log, health
        self._published, self._reload_requested = published, reload_requested

    @property
    def lag(self) -> int:
        """How many known events of the log the served memory does not hold yet."""
        return max(0, self.newest - self.loaded.memory.view.version)

    def announce(self, loaded: LoadedBundle) -> None:
        """Make a memory's new view known, unless the memory is not the one that is served."""
        if loaded is self.loaded:
            self._published(loaded)

    def read_if_changed(self) -> bool:
        """Apply the log's new events to the served memory, if there may be any."""
        if self.log_changed.is_set():
            self.log_changed.clear()
            self.read_on(self.loaded)
            self._health.note(unreadable="")
        return True

    def read_on(self, loaded: LoadedBundle) -> None:
        """Apply the log's new events, without its lock."""
        self._apply(loaded, self._log.read(after=loaded.memory.view.version))

    def catch_up(self, loaded: LoadedBundle, appending: Appending) -> None:
        """Apply the log's new events under its lock: afterwards the memory holds all of it."""
        version = loaded.memory.view.version
        if appending.last > version:
            self._apply(loaded, appending.read(after=version))

    def serve(self, loaded: LoadedBundle) -> None:
        """Publish this bundle's memory from now on."""
        self.newest = max(self.newest, loaded.memory.view.version)
        self.loaded = loaded
        self._published(loaded)

    def _apply(self, loaded: LoadedBundle, events: Iterator[Event]) -> None:
        before = loaded.memory.view.version
        reload_request = loaded.apply(events)
        if loaded.memory.view.version == before:
            return
        self.newest = max(self.newest, loaded.memory.view.version)
        self.announce(loaded)
        if reload_request is not None:
            self._reload_requested(reload_request)
