"""Lock and progress file of the snapshot that is being written to a folder of bundles.

The writing process holds a lock on the folder (`flock`), which ends with the process. It keeps the
progress in `.snapshot.json` there: its child updates the file, and every worker reads it. Removing
the file cancels the snapshot.
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
FILE_BYTES = 1024  # constant: overwriting in place needs no free disk space
LOCK_SECONDS = 0.5  # to wait for readers, which hold the lock for a moment to test it
_RETRY_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class SnapshotProgress:
    """The progress of a snapshot: `rows` of `of_rows` are indexed; `started` is a Unix time."""

    bundle: str
    version: int
    stage: str = "read"  # "read", "index" or "write"
    rows: int = 0
    of_rows: int = 0
    started: float = field(default_factory=time)

    def document(self) -> dict[str, Any]:
        """Return the progress for GET /info, with the seconds since its start."""
        document = asdict(self)
        document["seconds"] = round(max(0.0, time() - document.pop("started")), 1)
        return document


class SnapshotFile:
    """The progress of the snapshot that is written to one folder."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which may not exist yet."""
        self.folder, self.path = folder, folder / FILE_NAME

    @contextmanager
    def only_one(self) -> Iterator[None]:
        """Hold the folder's lock. Raises `Busy`, or `SealError` if the folder cannot be used."""
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

        Raises `SealError` if it cannot be written. If the file was removed meanwhile, the block's
        `SealError` becomes `Cancelled`.
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
            return  # writing the bundle will report the disk's error

    def read(self) -> SnapshotProgress | None:
        """Return the progress, or None if no snapshot is being written to this folder."""
        with suppress(OSError, ValueError, TypeError):
            descriptor = os.open(self.folder, os.O_RDONLY)
            try:
                # A killed process leaves its file behind, but no lock.
                if not _locked(descriptor, fcntl.LOCK_SH):
                    return SnapshotProgress(**orjson.loads(self.path.read_bytes()))
            finally:
                os.close(descriptor)
        return None

    def remove(self) -> None:
        """Remove the file; the process that writes the snapshot then cancels it."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _content(progress: SnapshotProgress) -> bytes:
    return orjson.dumps(asdict(progress)).ljust(FILE_BYTES)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
