"""Where shards answer: files in one folder, which the launcher writes and its workers read.

| file                  | content                                                            |
|-----------------------|--------------------------------------------------------------------|
| `BUNDLE.PID.wanted`   | the process PID wants the shards of the bundle in this folder      |
| `BUNDLE.places.json`  | `places` of each shard's replicas, and the `error` that keeps a    |
|                       | shard from starting                                                |
| `error`               | why no shard can be placed                                         |

BUNDLE is the bundle's fingerprint. Places are written again twice a second, so old ones show that
nobody looks after the shards.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic, sleep

import orjson

from service.core.bundle import manifest
from service.core.bundle.bundle import Bundle
from service.core.errors import ShardsUnavailable
from service.core.files.atomic import write_file
from service.core.label_log import LabelLog
from service.core.memory.shards import Shards
from service.settings import EngineSettings
from service.shards.front import Address, KnownPlaces, SocketShards

READ_SECONDS = 0.05  # pause between two looks at a file
WANTED, PLACES, ERROR = ".wanted", ".places.json", "error"


class PlacesFolder:
    """The folder of one service's shards."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which exists."""
        self._folder = folder

    def want(self, fingerprint: str, bundle: Path) -> Path:
        """Say that this process wants the shards of a bundle, until the returned file is gone."""
        file = self._folder / f"{fingerprint}.{os.getpid()}{WANTED}"
        write_file(file, os.fsencode(bundle.absolute()))
        return file

    def wanted(self) -> Iterator[tuple[str, Path]]:
        """Yield the bundles whose shards are wanted: fingerprint and folder."""
        for file in sorted(self._folder.glob(f"*{WANTED}")):
            fingerprint, process = file.name.removesuffix(WANTED).split(".")
            if not Path("/proc", process).exists():
                file.unlink(missing_ok=True)
                continue
            with suppress(FileNotFoundError):
                yield fingerprint, Path(os.fsdecode(file.read_bytes()))

    def write(self, fingerprint: str, known: KnownPlaces) -> None:
        """Announce where the shards of a bundle answer."""
        places = [[tuple(one) for one in of_shard] for of_shard in known.places]
        document = {"places": places, "error": known.error}
        partial = self._folder / f".{fingerprint}{PLACES}"  # no crash to survive: not synced
        partial.write_bytes(orjson.dumps(document))
        partial.replace(self._folder / f"{fingerprint}{PLACES}")

    def fail(self, error: str) -> None:
        """Announce why no shard can be placed."""
        (self._folder / ERROR).write_text(error)

    def read(self, fingerprint: str) -> KnownPlaces:
        """Return where the shards of a bundle answer; nothing is known before `write`."""
        file = self._folder / f"{fingerprint}{PLACES}"
        try:
            document, written = orjson.loads(file.read_bytes()), file.stat().st_mtime
        except FileNotFoundError:
            failed = self._folder / ERROR
            return KnownPlaces(error=failed.read_text() if failed.exists() else "")
        return KnownPlaces(
            places=[[Address(*one) for one in of_shard] for of_shard in document["places"]],
            error=document["error"],
            written=written,
        )

    def open(self, bundle: Bundle, label_log: LabelLog, settings: EngineSettings) -> Shards:
        """Return the shards of a bundle, once each has a replica.

        Raises `ShardsUnavailable` if one cannot start, or has not after `warm_up_seconds`.
        """
        fingerprint = manifest.fingerprint(bundle.manifest)
        file = self.want(fingerprint, bundle.folder)
        late = monotonic() + settings.warm_up_seconds
        while not (known := self.read(fingerprint)).complete:
            if known.error:
                raise ShardsUnavailable(known.error)
            if monotonic() > late:
                raise ShardsUnavailable(
                    f"not all shards were there within {settings.warm_up_seconds} s"
                    " (engine.warm_up_seconds)"
                )
            sleep(READ_SECONDS)
        shards = SocketShards(
            _Watched(self, fingerprint),
            bundle=fingerprint,
            log=label_log.id,
            dimension=bundle.manifest.encoder.dimension,
            settings=settings,
        )
        weakref.finalize(shards, file.unlink, missing_ok=True)  # once no view needs them
        return shards


class _Watched:
    """The newest places of one bundle's shards."""

    def __init__(self, folder: PlacesFolder, fingerprint: str) -> None:
        self._folder, self._fingerprint = folder, fingerprint
        self._known, self._read_again = folder.read(fingerprint), 0.0
        self._lock = Lock()

    def __call__(self) -> KnownPlaces:
        if monotonic() >= self._read_again:
            with self._lock:
                self._known = self._folder.read(self._fingerprint)
                self._read_again = monotonic() + READ_SECONDS
        return self._known
