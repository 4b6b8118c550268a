"""The snapshot that is being written to a folder of bundles: one at a time, its progress, its end.

Whoever writes one holds a lock on the folder (`flock`), which ends with its process. The service
keeps how far it is in `.snapshot.json` there, which its child brings up to date and every worker
reads. Removing that file asks the child to give up.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import orjson

from service.core.errors import Busy, Cancelled, SealError

FILE_NAME = ".snapshot.json"
FILE_BYTES = 1024  # always: what is overwritten in place needs no free space
LOCK_SECONDS = 0.5  # for a lock that is only held to see whether anybody else holds it
_RETRY_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class SnapshotProgress:
    """How far a snapshot is: `rows` of `of_rows` are indexed; `started` is a Unix time."""

    bundle: str
    version: int
    stage: str = "read"  # then "index", then "write"
    rows: int = 0
    of_rows: int = 0
    started: float = field(default_factory=time)


class SnapshotFile:
    """The progress of the snapshot that is written to one folder."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which may not exist yet."""
        self.folder, self.path = folder, folder / FILE_NAME

    @contextmanager
    def only_one(self) -> Iterator[None]:
        """Hold the folder's lock; raises `Busy`, or `SealError` if the folder cannot be used."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise SealError(f"{self.folder} cannot be used: {error.strerror}") from error
        try:
            deadline = monotonic() + LOCK_SECONDS
            while not _locked(descriptor, fcntl.LOCK_EX):
                if monotonic() > deadline:
                    raise Busy("a snapshot is being written")
                sleep(_RETRY_SECONDS)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def kept(self, progress: SnapshotProgress) -> Iterator[None]:
        """Keep the file while the block runs.

        Raises `SealError` if it cannot be written, and `Cancelled` in place of a `SealError` of the
        block, if it was removed meanwhile.
        """
        try:
            try:
                self.path.write_bytes(_content(progress))
            except OSError as error:
                raise SealError(f"{self.folder} cannot be written: {error.strerror}") from error
            try:
                yield
            except SealError as error:
                if not self.path.exists():
                    raise Cancelled("the snapshot was cancelled; nothing was written") from error
                raise
        finally:
            self.remove()

    def update(self, progress: SnapshotProgress) -> None:
        """Overwrite the file; raises `Cancelled` if it was removed."""
        try:
            with self.path.open("r+b") as file:
                file.write(_content(progress))
        except FileNotFoundError:
            raise Cancelled("the snapshot was cancelled") from None
        except OSError:
            return  # the bundle itself will say what is wrong with the disk

    def read(self) -> SnapshotProgress | None:
        """How far the snapshot is, None if the service writes none to this folder."""
        with suppress(OSError, ValueError, TypeError):
            descriptor = os.open(self.folder, os.O_RDONLY)
            try:
                # A process that was killed has left its file behind, but no lock.
                if not _locked(descriptor, fcntl.LOCK_SH):
                    return SnapshotProgress(**orjson.loads(self.path.read_bytes()))
            finally:
                os.close(descriptor)
        return None

    def remove(self) -> None:
        """Remove the file; whoever writes the snapshot gives up when it notices."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def described(progress: SnapshotProgress | None) -> dict[str, Any] | None:
    """A snapshot's progress for GET /info, with its age in seconds."""
    if progress is None:
        return None
    document = asdict(progress)
    document["seconds"] = round(max(0.0, time() - document.pop("started")), 1)
    return document


def _content(progress: SnapshotProgress) -> bytes:
    return orjson.dumps(asdict(progress)).ljust(FILE_BYTES)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
