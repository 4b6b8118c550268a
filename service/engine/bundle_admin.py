"""Snapshots and reloads: write a bundle, or switch to another one, while queries are answered."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from service.command_line import STATE_VARIABLE
from service.core.bundle.bundle import Bundle
from service.core.bundle.object_store import is_url
from service.core.changes import UseBundle
from service.core.errors import (
    BundleError,
    BundlesUnwritable,
    BundleUnsupported,
    Busy,
    KeymatchError,
    NotReady,
    SealError,
    SealLate,
    StoreError,
)
from service.core.files.atomic import discard_partial, refusal_behind
from service.core.index.devices import ScanDevice
from service.core.label_log import LabelLog
from service.core.processes.low_priority import LowPriorityChild, niceness_of
from service.core.processes.own_code import own_module
from service.engine.bundle_directory import BundleDirectory
from service.engine.encoder_pool import LabelEncoding
from service.engine.loaded_bundle import (
    LoadedBundle,
    OpenShards,
    load_bundle,
    require_same_builder,
)
from service.engine.snapshot_file import SnapshotFile, SnapshotProgress
from service.engine.trial import most_bytes
from service.engine.writing.writer import Writer
from service.settings import EngineSettings
from service.telemetry import Telemetry

SHOWN_CHARACTERS = 500  # most of a refused bundle's cause
_ABSOLUTE = re.compile(r"(?<![\w.:/-])/[^\s:;,'\")]+")  # a path of this machine, but no URL

log = logging.getLogger("keymatch")


def without_folders(message: str) -> str:
    """Return the first line of a message; of absolute paths, only the last two parts are left."""
    line = message.partition("\n")[0]
    return _ABSOLUTE.sub(lambda found: "/".join(found[0].split("/")[1:][-2:]), line)[
        :SHOWN_CHARACTERS
    ]


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
        open_shards: OpenShards | None = None,
    ) -> None:
        """Administer one engine's bundles; `submit` calls a function in an answering thread."""
        self._directory, self._state, self._log = directory, state, label_log
        self._writer, self._encoding, self._submit = writer, encoding, submit
        self._settings, self._device, self._telemetry = settings, device, telemetry
        self._open_shards = open_shards
        self._child, self._trial = LowPriorityChild(), LowPriorityChild()
        self._reloading = threading.Lock()
        self._progress = SnapshotFile(directory.folder)

    def snapshot(self, loaded: LoadedBundle, name: str | None) -> tuple[str, int]:
        """Write everything up to the present version as a bundle; returns its name and version.

        A child process reads the same bundle and log, so nothing waits in this process. On a busy
        machine it gets `write_share` of a core. Raises `Busy`, `Cancelled`, `InvalidInput` for a
        name that exists or is not allowed, `BundlesUnwritable` if the folder cannot be written,
        `StoreError` for a URL that cannot be used, or `SealError` if the child fails or exceeds
        `snapshot_seconds`.
        """
        version = loaded.memory.view.version
        if name is None:
            name = f"{loaded.bundle.folder.name}-v{version}"
        place = self._directory.new(name)
        cache = ("--cache", str(self._directory.cache.folder)) if is_url(place) else ()
        progress = SnapshotProgress(bundle=name, version=version)
        with self._refusal_named(), self._progress.only_one(), self._progress.kept(progress):
            try:
                self._child.run(
                    own_module(
                        *("service", "snapshot"),
                        *("--bundle", str(loaded.bundle.folder), "--out", place),
                        *cache,
                        *("--until", str(version), "--progress", str(self._progress.path)),
                        "--other-data",  # the serving process has checked this
                        *("--niceness", str(niceness_of(self._settings.write_share))),
                    ),
                    secrets={STATE_VARIABLE: str(self._state)},
                    seconds=self._settings.snapshot_seconds,
                )
            except SealError:
                discard_partial(self._directory.folder / name)  # a killed child leaves it behind
                if self._directory.url:
                    shutil.rmtree(self._directory.folder / name, ignore_errors=True)
                raise
        log.info("snapshot written", extra={"bundle": name, "version": version})
        return name, version

    def snapshot_progress(self) -> SnapshotProgress | None:
        """Return the progress of the snapshot that any process is writing, or None."""
        return self._progress.read()

    def cancel_snapshot(self) -> str | None:
        """Cancel the running snapshot; returns its name, or None if there is none.

        A child of another process ends when it next updates its progress.
        """
        progress = self._progress.read()
        if progress is None:
            return None
        self._progress.remove()
        self._child.kill()
        log.info("snapshot cancelled", extra={"bundle": progress.bundle})
        return progress.bundle

    def reload(self, name: str, *, other_data: bool = False) -> LoadedBundle:
        """Switch to another bundle; the present one answers until the other is ready.

        `name` may be the URL of a bundle below that of `--bundles`. `other_data` allows a bundle of
        other data than the log was begun for. Other processes on the same log follow. Raises
        `Busy`, `InvalidInput`, `OtherData`, `BundleError` or `LogError`; the present bundle then
        stays.
        """
        name = self._directory.name(name)
        if not self._directory.url:
            self._directory.path(name)
        if not self._reloading.acquire(blocking=False):
            raise Busy("another bundle is being opened")
        try:
            configured = self._directory.configured()
            return self._switch_to(name, configured=configured, other_data=other_data)
        finally:
            self._reloading.release()

    def follow(self, request: UseBundle) -> None:
        """Switch to the bundle that another process has logged; opens it in a new thread."""
        threading.Thread(target=self._follow, args=(request,), name="reload", daemon=True).start()

    def close(self) -> None:
        """Kill the child processes that write a snapshot or try a bundle."""
        self._child.stop()
        self._trial.stop()

    @contextmanager
    def _refusal_named(self) -> Iterator[None]:
        try:
            yield
        except SealError as error:
            url = self._directory.url
            _, refused, cause = str(error).partition(f"error: {url}")
            if url and refused:  # the child's own message
                raise StoreError(url + cause) from error
            refusal = refusal_behind(error, self._directory.folder)
            if refusal is None:
                raise
            log.error("The snapshot cannot be written", extra={"cause": str(error)})
            cause = refusal.strerror or str(refusal)
            if url:
                said = "a snapshot cannot be written to the folder of --cache before it is pushed"
                raise StoreError(f"{url}: {said}: {cause}") from error
            raise BundlesUnwritable(cause) from error

    def _switch_to(self, name: str, *, configured: str, other_data: bool = False) -> LoadedBundle:
        settings = replace(self._settings, other_data=other_data or self._settings.other_data)
        try:
            loaded = load_bundle(
                self._directory.existing(name),
                self._log,
                settings,
                device=self._device,
                trial=self._try,
                open_shards=self._open_shards,
            )
            loaded.warm_up(self._submit, threads=settings.threads, seconds=settings.warm_up_seconds)
            with self._encoding.switched_to(loaded):
                self._writer.switch_to(loaded, configured=configured).result()
        except KeymatchError as error:
            self._telemetry.reloads.labels("failed").inc()
            if isinstance(error, BundleError):
                error.shown = without_folders(str(error))
            raise
        self._telemetry.reloads.labels("ok").inc()
        score_kind = loaded.bundle.manifest.score_kind
        log.info("bundle reloaded", extra={"bundle": name, "score_kind": score_kind})
        return loaded

    def _try(self, bundle: Bundle) -> None:
        """Try a bundle in a child process with limited time and memory; see `trial`.

        Raises `BundleUnsupported` if it fails, and `NotReady` while the service stops.
        """
        require_same_builder(bundle, self._log)
        folder, seconds = bundle.folder, self._settings.warm_up_seconds
        niceness = niceness_of(self._settings.write_share)
        command = own_module("service.engine.trial", folder)
        try:
            self._trial.run([*command, str(niceness), str(seconds)], seconds=seconds)
        except SealLate as error:
            raise BundleUnsupported(
                f"{folder} had no first answer within {seconds} s (engine.warm_up_seconds)"
            ) from error
        except SealError as error:
            if self._trial.stopped:
                raise NotReady("the service is stopping") from error
            raise BundleUnsupported(
                f"{folder} could not answer a query in a child process with"
                f" {most_bytes(bundle.manifest)} bytes of memory: {error}"
            ) from error

    def _follow(self, request: UseBundle) -> None:
        with self._reloading:
            newest = self._log.newest(UseBundle.kind)
            if newest is not None and newest.sequence > request.sequence:
                return  # another thread handles the newer request
            try:
                self._switch_to(request.bundle, configured="")
            except KeymatchError as error:
                log.error(
                    "another process has reloaded a bundle that cannot be opened here",
                    extra={"bundle": request.bundle, "cause": str(error)},
                )
