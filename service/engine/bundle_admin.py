"""Snapshots and reloads: write what is served as a bundle, and serve another bundle, while queries
are answered."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from service.core.changes import UseBundle
from service.core.errors import Busy, InvalidInput, KeymatchError, SealError
from service.core.files.atomic import discard_partial
from service.core.index.devices import ScanDevice
from service.core.label_log import LabelLog
from service.core.processes.low_priority import LowPriorityChild, niceness_of
from service.engine.bundle_directory import BundleDirectory
from service.engine.label_encoding import LabelEncoding
from service.engine.loaded_bundle import LoadedBundle, load_bundle
from service.engine.snapshot_file import SnapshotFile, SnapshotProgress
from service.engine.writing.writer import Writer
from service.settings import STATE_VARIABLE, EngineSettings
from service.telemetry import Telemetry

log = logging.getLogger("keymatch")


class BundleAdmin:
    """Takes snapshots and reloads bundles, one of each at a time."""

    def __init__(
        self,
        *,
        directory: BundleDirectory,
        state: Path | str,
        label_log: LabelLog,
        writer: Writer,
        encoding: LabelEncoding,
        submit: Callable[[Callable[[], None]], Future[None]],
        settings: EngineSettings,
        device: ScanDevice | None,
        telemetry: Telemetry,
    ) -> None:
        """Work for one engine; `submit` calls a function in an answering thread."""
        self._directory, self._state, self._log = directory, state, label_log
        self._writer, self._encoding, self._submit = writer, encoding, submit
        self._settings, self._device, self._telemetry = settings, device, telemetry
        self._child = LowPriorityChild()
        self._reloading = threading.Lock()
        self._progress = SnapshotFile(directory.folder)

    def snapshot(self, loaded: LoadedBundle, name: str | None) -> tuple[str, int]:
        """Write everything up to the present version as a bundle; returns its name and version.

        A child process reads the same bundle and log, so that nothing waits in this one. Beside
        busy processes it gets `write_share` of a core. Raises `Busy`, `Cancelled`, `InvalidInput`
        for a name that exists or is not allowed, or `SealError`, also after `snapshot_seconds`.
        """
        version = loaded.memory.view.version
        if name is None:
            name = f"{loaded.bundle.folder.name}-v{version}"
        target = self._directory.path(name)
        if target.exists():
            raise InvalidInput(f"a bundle named {name!r} exists already", field="bundle")
        progress = SnapshotProgress(bundle=name, version=version)
        with self._progress.only_one(), self._progress.kept(progress):
            try:
                self._child.run(
                    [
                        *(sys.executable, "-m", "service", "snapshot"),
                        *("--bundle", str(loaded.bundle.folder), "--out", str(target)),
                        *("--until", str(version), "--progress", str(self._progress.path)),
                        "--other-data",  # where it is, it was allowed
                        *("--niceness", str(niceness_of(self._settings.write_share))),
                    ],
                    secrets={STATE_VARIABLE: str(self._state)},
                    seconds=self._settings.snapshot_seconds,
                )
            except SealError:
                discard_partial(target)  # a child that was killed could not
                raise
        log.info("snapshot written", extra={"bundle": name, "version": version})
        return name, version

    def snapshot_progress(self) -> SnapshotProgress | None:
        """How far the snapshot is that this or another process writes to the bundles' folder."""
        return self._progress.read()

    def cancel_snapshot(self) -> str | None:
        """Give up the snapshot that is being written; returns its name, None if there is none.

        The child of another process ends when it next brings its progress up to date.
        """
        progress = self._progress.read()
        if progress is None:
            return None
        self._progress.remove()
        self._child.kill()
        log.info("snapshot cancelled", extra={"bundle": progress.bundle})
        return progress.bundle

    def reload(self, name: str, *, other_data: bool = False) -> LoadedBundle:
        """Serve another bundle from now on; the present one answers until the other is ready.

        `other_data` allows a bundle of other data than the log was begun for. Other processes on
        the same log follow. Raises `Busy`, `InvalidInput`, `OtherData`, `BundleError` or
        `LogError`, and then nothing has changed.
        """
        self._directory.path(name)
        with _one_at_a_time(self._reloading, "another bundle is being opened"):
            return self._switch_to(
                name, configured=self._directory.configured(), other_data=other_data
            )

    def follow(self, request: UseBundle) -> None:
        """Serve the bundle that another process has logged; opens it in a thread of its own."""
        threading.Thread(target=self._follow, args=(request,), name="reload", daemon=True).start()

    def close(self) -> None:
        """Kill the child that writes a snapshot, if there is one."""
        self._child.stop()

    def _switch_to(self, name: str, *, configured: str, other_data: bool = False) -> LoadedBundle:
        settings = replace(self._settings, other_data=other_data or self._settings.other_data)
        try:
            loaded = load_bundle(
                self._directory.existing(name), self._log, settings, device=self._device
            )
            loaded.warm_up(self._submit, threads=self._settings.threads)
            with self._encoding.switched_to(loaded):
                self._writer.switch_to(loaded, configured=configured).result()
        except KeymatchError:
            self._telemetry.reloads.labels("failed").inc()
            raise
        self._telemetry.reloads.labels("ok").inc()
        log.info("bundle reloaded", extra={"bundle": name})
        return loaded

    def _follow(self, request: UseBundle) -> None:
        with self._reloading:
            newest = self._log.newest(UseBundle.kind)
            if newest is not None and newest.sequence > request.sequence:
                return  # the newer request has a thread of its own
            try:
                self._switch_to(request.bundle, configured="")
            except KeymatchError as error:
                log.error(
                    "another process has reloaded a bundle that cannot be opened here",
                    extra={"bundle": request.bundle, "cause": str(error)},
                )


@contextmanager
def _one_at_a_time(lock: threading.Lock, busy: str) -> Iterator[None]:
    if not lock.acquire(blocking=False):
        raise Busy(busy)
    try:
        yield
    finally:
        lock.release()
