"""Segments of live rows on disk, shared by the processes of a machine and kept across restarts.

| file                 | content                                                           |
|----------------------|-------------------------------------------------------------------|
| `KEY/segment.index`  | HNSW in the index library's own format                            |
| `KEY/segment.json`   | size and SHA-256 of `segment.index`                               |

KEY is the SHA-256 over library, parameters and vectors: a segment over the same rows is built only
once, and a folder that was left behind is never mistaken for another segment. A segment can always
be built again from the log.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from time import sleep, time
from typing import IO

import numpy as np
import orjson

from service.core.errors import BundleError, InvalidData, SealError, SealLate
from service.core.files.atomic import new_folder
from service.core.files.checksums import FileFacts, file_facts, verify_files
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import Segment
from service.core.processes.low_priority import LowPriorityChild
from service.core.types import Halves

INDEX = "segment.index"
FACTS = "segment.json"
LATE_SECONDS, LATE_SECONDS_A_ROW = 30.0, 0.004
STUCK_FACTOR = 10  # times `late_after`, with more priority; then the child is not slow but stuck
LOCK_SECONDS = 0.1  # between two attempts to take the lock of building

log = logging.getLogger("keymatch")


def late_after(rows: int) -> float:
    """Seconds after which a segment of so many rows is late: some five times an idle core's."""
    return LATE_SECONDS + LATE_SECONDS_A_ROW * rows


class SegmentStore:
    """The segments in one folder."""

    def __init__(self, folder: Path, *, late_niceness: int = 0) -> None:
        """Use `folder`, which is created when the first segment is built.

        A segment that is late is built at `late_niceness`.
        """
        self._folder, self._late_niceness = folder, late_niceness
        self._child = LowPriorityChild()

    def key(self, vectors: Halves, parameters: IndexParameters) -> str:
        """Return the name of the segment over vectors [n, d]."""
        digest = hashlib.sha256(orjson.dumps([asdict(parameters), list(vectors.shape)]))
        digest.update(np.ascontiguousarray(vectors).data)
        return digest.hexdigest()[:32]

    def find(
        self,
        key: str,
        parameters: IndexParameters,
        *,
        shape: tuple[int, int],
        discard_damaged: bool = True,
    ) -> Segment | None:
        """Open the segment of this key over vectors of `shape` [n, d].

        Returns None if it was not built yet or is damaged; a damaged one is deleted, unless the
        caller only reads.
        """
        folder = self._folder / key
        try:
            facts = FileFacts(**orjson.loads((folder / FACTS).read_bytes()))
            verify_files(folder, {INDEX: facts})
            rows, dimension = shape
            return load_library(parameters.library).open(
                folder / INDEX, rows=rows, dimension=dimension
            )
        except FileNotFoundError:
            return None
        except (BundleError, OSError, TypeError, ValueError) as error:
            if not discard_damaged:
                return None
            log.warning(
                "a segment on disk is damaged; it is deleted and built again",
                extra={"cause": str(error)},
            )
            shutil.rmtree(folder, ignore_errors=True)
            return None

    def build(self, key: str, vectors: Halves, parameters: IndexParameters) -> None:
        """Build the segment over vectors [n, d] in a child process of the lowest priority.

        Where other processes keep the cores busy, it may be given next to no time, while its rows
        are scanned. So it is killed when it is late (`late_after`) and begun again at the niceness
        of a stated share, where it has ten times as long.

        Processes that share the folder build one segment at a time, and do not build what another
        one has built meanwhile. Raises `SealError` if the child fails or is stuck, if the folder
        cannot be written, or after `interrupt`.
        """
        try:
            with self._build_lock():
                if not (self._folder / key / FACTS).exists():
                    self._build(key, vectors, parameters)
        except InvalidData as error:
            raise SealError(str(error)) from error
        except OSError as error:
            raise SealError(
                f"segments cannot be built: {self._folder} cannot be written: {error.strerror}"
            ) from error

    def interrupt(self) -> None:
        """Kill the child that is building, and refuse to start another."""
        self._child.stop()

    def discard(self, key: str) -> None:
        """Delete a segment that a larger one has replaced; processes that have it open keep it."""
        shutil.rmtree(self._folder / key, ignore_errors=True)

    def prune(self, keep: Collection[str], *, older_than: float) -> None:
        """Delete the segments that are older than `older_than` seconds and not in `keep`.

        A process that is killed before a merge is complete leaves the merged segments behind. A
        process that still needs a deleted one builds it again.
        """
        for facts in self._folder.glob(f"*/{FACTS}"):
            with suppress(OSError):  # another process may delete the same folder
                if facts.parent.name not in keep and facts.stat().st_mtime < time() - older_than:
                    shutil.rmtree(facts.parent)

    def _build(self, key: str, vectors: Halves, parameters: IndexParameters) -> None:
        with tempfile.TemporaryDirectory(prefix=".build-", dir=self._folder) as name:
            job = Path(name)
            np.save(job / "vectors.npy", vectors)
            (job / "parameters.json").write_bytes(orjson.dumps(asdict(parameters)))
            command = [sys.executable, "-m", "service.core.memory.build_segment", str(job)]
            try:
                self._child.run(command, seconds=late_after(len(vectors)))
            except SealLate as late:
                log.warning("a segment is built with more priority", extra={"cause": str(late)})
                self._child.run(
                    [*command, str(self._late_niceness)],
                    seconds=STUCK_FACTOR * late_after(len(vectors)),
                )
            facts = file_facts(job)[INDEX]
            self.discard(key)  # remove a folder without `segment.json`
            with new_folder(self._folder / key) as folder:
                (job / INDEX).rename(folder / INDEX)
                (folder / FACTS).write_bytes(orjson.dumps(asdict(facts)))

    @contextmanager
    def _build_lock(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "build.lock").open("w") as lock:
            while not _locked(lock):  # a process that holds it may be stuck
                if self._child.stopped:
                    raise SealError("the service is stopping")
                sleep(LOCK_SECONDS)
            for abandoned in self._folder.glob(".*-*"):
                shutil.rmtree(abandoned, ignore_errors=True)  # left by a process that was killed
            yield


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
