"""Snapshots and reloads: from one bundle to the next while queries are answered."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.core.bundle import manifest
from service.core.errors import Busy, InvalidInput, KeymatchError, SealError
from service.core.files.atomic import discard_partial
from service.core.label_log import USE_BUNDLE, LabelLog
from service.core.processes.low_priority import LowPriorityChild
from service.core.types import Event
from service.engine.loaded_bundle import Serving, open_serving
from service.engine.writer import Writer
from service.settings import STATE_VARIABLE, EngineSettings
from service.telemetry import Telemetry

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The folder that holds bundles by name, and the one that the service was started with."""

    folder: Path
    started_with: Path

    def place(self, name: str) -> Path:
        """The folder of a bundle; raises `InvalidInput` for a name that could leave the shelf."""
        if not NAME.fullmatch(name):
            raise InvalidInput(
                "must be a folder's name of letters, digits, '.', '_' and '-'", field="bundle"
            )
        return self.folder / name

    def configured(self) -> str:
        """The fingerprint of the bundle that the service was started with."""
        return manifest.fingerprint(manifest.read(self.started_with))

    def current(self, label_log: LabelLog) -> Path:
        """The bundle to open at the start.

        Another one may have been put in the place of the configured bundle while the service ran;
        a restart goes on with it. A start with another bundle than then is a new decision.
        """
        wish = label_log.newest(USE_BUNDLE)
        if wish is None or wish.body["configured"] != self.configured():
            return self.started_with
        folder = self.place(wish.body["bundle"])
        if folder.is_dir():
            return folder
        log.warning(
            "the bundle that was last reloaded is gone; the configured one is served",
            extra={"bundle": folder.name},
        )
        return self.started_with


class Administration:
    """Takes snapshots and exchanges bundles, one at a time each."""

    def __init__(
        self,
        *,
        shelf: Shelf,
        state: Path | str,
        label_log: LabelLog,
        writer: Writer,
        pool: ThreadPoolExecutor,
        settings: EngineSettings,
        telemetry: Telemetry,
    ) -> None:
        """Work for one engine; `pool` holds its answering threads."""
        self._shelf, self._state, self._log = shelf, state, label_log
        self._writer, self._pool = writer, pool
        self._settings, self._telemetry = settings, telemetry
        self._child = LowPriorityChild()
        self._snapshotting, self._reloading = threading.Lock(), threading.Lock()

    def snapshot(self, serving: Serving, name: str | None) -> tuple[str, int]:
        """Write everything up to the present version as a bundle; returns its name and version.

        A niced child reads the same bundle and log, so that nothing here waits. Raises `Busy`,
        `InvalidInput` for a taken or impossible name, or `SealError`.
        """
        version = serving.memory.view.version
        name = name or f"{serving.bundle.folder.name}-v{version}"
        target = self._shelf.place(name)
        if target.exists():
            raise InvalidInput(f"a bundle named {name!r} exists already", field="bundle")
        with _one_at_a_time(self._snapshotting, "a snapshot is being written"):
            try:
                self._child.run(
                    [
                        *(sys.executable, "-m", "service", "snapshot", "--nice"),
                        *("--bundle", str(serving.bundle.folder), "--out", str(target)),
                        *("--until", str(version)),
                    ],
                    secrets={STATE_VARIABLE: str(self._state)},
                )
            except SealError:
                discard_partial(target)  # a child that was killed could not
                raise
        log.info("snapshot written", extra={"bundle": name, "version": version})
        return name, version

    def reload(self, name: str) -> Serving:
        """Serve another bundle from now on; what is served goes on until it is ready.

        Other processes on the same log follow. Raises `Busy`, `InvalidInput`, `BundleError` or
        `LogError`, and then nothing has changed.
        """
        self._shelf.place(name)
        with _one_at_a_time(self._reloading, "another bundle is being opened"):
            return self._exchange(name, configured=self._shelf.configured())

    def _exchange(self, name: str, *, configured: str) -> Serving:
        try:
            serving = open_serving(self._shelf.place(name), self._log, self._settings)
            serving.warm_up(self._pool, threads=self._settings.threads)
            self._writer.exchange(serving, configured=configured).result()
        except KeymatchError:
            self._telemetry.reloads.labels("failed").inc()
            raise
        self._telemetry.reloads.labels("ok").inc()
        log.info("bundle reloaded", extra={"bundle": name})
        return serving

    def follow(self, wish: Event) -> None:
        """Open the bundle that another process has opened, in a thread of its own."""
        threading.Thread(target=self._follow, args=(wish,), name="reload", daemon=True).start()

    def _follow(self, wish: Event) -> None:
        with self._reloading:
            newest = self._log.newest(USE_BUNDLE)
            if newest is not None and newest.sequence > wish.sequence:
                return  # whoever saw that wish opens that bundle
            try:
                self._exchange(wish.body["bundle"], configured="")
            except KeymatchError as error:
                log.error(
                    "another process has reloaded a bundle that cannot be opened here",
                    extra={"bundle": wish.body["bundle"], "cause": str(error)},
                )

    def close(self) -> None:
        """Kill a snapshot that is being written."""
        self._child.stop()


@contextmanager
def _one_at_a_time(lock: threading.Lock, busy: str) -> Iterator[None]:
    if not lock.acquire(blocking=False):
        raise Busy(busy)
    try:
        yield
    finally:
        lock.release()
