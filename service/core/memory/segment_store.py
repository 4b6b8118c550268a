"""Segments of live rows on disk, shared by the processes of a machine and kept across restarts.

| file                 | content                                                           |
|----------------------|-------------------------------------------------------------------|
| `KEY/segment.index`, `KEY/segment.equal.npy` | see `frozen_segment`                      |
| `KEY/segment.json`   | `files`: size and SHA-256 of each of them; `nodes`, the number of |
|                      | distinct keys; `recall` of searches with the queue `ef`;          |
|                      | `builder` and `parameters`, with which the graph was built        |

KEY is the SHA-256 over builder, parameters and vectors. So a segment over the same rows is built
only once, and an old folder is never mistaken for another segment. A segment can always be built
again from the log. If a device searches, `DeviceSegments` replace the files.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from time import sleep, time
from typing import IO

import numpy as np
import orjson

from service.core.errors import BundleError, DeviceUnavailable, InvalidData, SealError, SealLate
from service.core.files.arrays import unnamed_matrix
from service.core.files.atomic import new_folder
from service.core.files.folder_facts import FileFacts, file_facts, verify_files
from service.core.index.device_segment import DeviceSegment
from service.core.index.devices import ScanDevice
from service.core.index.frozen_segment import equal_path, open_segment
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import Segment
from service.core.processes.low_priority import LowPriorityChild
from service.core.processes.own_code import own_module
from service.core.types import Halves

INDEX, FACTS = "segment.index", "segment.json"
VECTORS, MEASURED = "vectors.npy", "measured.json"  # files of a build
LATE_SECONDS, LATE_SECONDS_A_ROW = 30.0, 0.004
STUCK_FACTOR = 10  # a child is stuck after this many times `late_after`, even with more priority
LOCK_SECONDS = 0.1  # pause between two attempts to take the build lock

log = logging.getLogger("keymatch")


def late_after(rows: int) -> float:
    """Return the seconds after which a build is late: about five times what an idle core takes."""
    return LATE_SECONDS + LATE_SECONDS_A_ROW * rows


class SegmentStore:
    """The segments in one folder."""

    def __init__(self, folder: Path, *, own: Path | None = None, late_niceness: int = 0) -> None:
        """Use `folder`, which is created when the first segment is built.

        It is `own`, or within it, if anybody can make folders next to `own`: at each use, `own`
        must then be as `make_own` leaves it. If a build is late, it is repeated at `late_niceness`.
        """
        self._folder, self._own, self._late_niceness = folder, own, late_niceness
        self._child = LowPriorityChild()

    def key(self, vectors: Halves, parameters: IndexParameters) -> str:
        """Return the key of the segment over vectors [n, d]: its folder's name."""
        builder = load_library(parameters.library).builder()
        digest = hashlib.sha256(orjson.dumps([builder, asdict(parameters), list(vectors.shape)]))
        digest.update(np.ascontiguousarray(vectors).data)
        return digest.hexdigest()[:32]

    def matrix(self, shape: tuple[int, int]) -> Halves:
        """Return an `unnamed_matrix` [n, d]; raises `SealError` if the disk has no room."""
        try:
            self._make()
            return unnamed_matrix(self._folder, shape)
        except OSError as error:
            raise SealError(
                f"segments cannot be built: {self._folder} has no room for {2 * math.prod(shape)}"
                f" bytes: {error.strerror}"
            ) from error

    def find(
        self,
        key: str,
        parameters: IndexParameters,
        *,
        shape: tuple[int, int],
        discard_damaged: bool = True,
    ) -> Segment | None:
        """Open the segment with this key over vectors of `shape` [n, d].

        Returns None if it is not built yet or is damaged. A damaged segment is deleted, unless the
        caller only reads.
        """
        if not self._usable():
            return None
        folder = self._folder / key
        try:
            facts = orjson.loads((folder / FACTS).read_bytes())
            files = {name: FileFacts(**of_file) for name, of_file in facts["files"].items()}
            verify_files(folder, files)
            rows, dimension = shape
            return open_segment(
                folder / INDEX,
                library=parameters.library,
                rows=rows,
                nodes=facts["nodes"],
                dimension=dimension,
                least_ef=facts["ef"] if facts["ef"] > parameters.ef else 0,
            )
        except FileNotFoundError:
            return None
        except (BundleError, OSError, KeyError, TypeError, ValueError) as error:
            if not discard_damaged or not (folder / FACTS).exists():
                return None  # in the latter case, another process has just discarded it
            log.warning(
                "a segment on disk is damaged; it is deleted and built again",
                extra={"cause": str(error)},
            )
            shutil.rmtree(folder, ignore_errors=True)
            return None

    def build(self, key: str, vectors: Halves, parameters: IndexParameters) -> None:
        """Build the segment over vectors [n, d] in a child process of the lowest priority.

        If other processes keep the cores busy, the child hardly runs. So when it is late
        (`late_after`), it is killed and restarted at `late_niceness`, with ten times the limit.

        Processes that share the folder build one segment at a time, and each segment once. Raises
        `SealError` if the child fails or is stuck, if the folder cannot be written, or after
        `interrupt`.
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
        """Kill the child that is building, and start no other child."""
        self._child.stop()

    def discard(self, key: str) -> None:
        """Delete a segment that a larger one has replaced; processes that opened it keep it."""
        if self._usable():
            shutil.rmtree(self._folder / key, ignore_errors=True)

    def prune(self, keep: Collection[str], *, older_than: float) -> None:
        """Delete the segments that are older than `older_than` seconds and not in `keep`.

        A process that still needs a deleted one builds it again.
        """
        for facts in self._folder.glob(f"*/{FACTS}") if self._usable() else ():
            with suppress(OSError):  # another process may be deleting the same folder
                if facts.parent.name not in keep and facts.stat().st_mtime < time() - older_than:
                    shutil.rmtree(facts.parent)

    def _build(self, key: str, vectors: Halves, parameters: IndexParameters) -> None:
        with tempfile.TemporaryDirectory(prefix=".build-", dir=self._folder) as name:
            job = Path(name)
            np.save(job / VECTORS, vectors)
            (job / "parameters.json").write_bytes(orjson.dumps(asdict(parameters)))
            command = own_module("service.core.memory.build_segment", job)
            try:
                self._child.run(command, seconds=late_after(len(vectors)))
            except SealLate as late:
                log.warning("a segment is built with more priority", extra={"cause": str(late)})
                self._child.run(
                    [*command, str(self._late_niceness)],
                    seconds=STUCK_FACTOR * late_after(len(vectors)),
                )
            measured = orjson.loads((job / MEASURED).read_bytes())
            if measured["recall"] < parameters.recall_goal:
                log.warning("a segment misses its recall goal", extra=measured)
            self.discard(key)  # there may be a folder without `segment.json`
            with new_folder(self._folder / key) as folder:
                for name in {INDEX, equal_path(job / INDEX).name} & set(os.listdir(job)):
                    (job / name).rename(folder / name)
                facts = {name: asdict(of_file) for name, of_file in file_facts(folder).items()}
                how = {
                    "builder": load_library(parameters.library).builder(),
                    "parameters": asdict(parameters),
                }
                (folder / FACTS).write_bytes(orjson.dumps({"files": facts, **how, **measured}))

    def _make(self) -> None:
        """Make the folder unless it exists; raises `OSError`, also if it is not `own`."""
        if self._own is not None:
            make_own(self._own)
        self._folder.mkdir(parents=True, exist_ok=True)

    def _usable(self) -> bool:
        try:
            if self._own is not None:
                make_own(self._own)
        except OSError as error:
            cause = error.strerror
            log.error("segments are not used", extra={"folder": f"{self._own}", "cause": cause})
            return False
        return True

    @contextmanager
    def _build_lock(self) -> Iterator[None]:
        self._make()
        with (self._folder / "build.lock").open("w") as lock:
            while not _locked(lock):  # the holder may be stuck
                if self._child.stopped:
                    raise SealError("the service is stopping")
                sleep(LOCK_SECONDS)
            for abandoned in self._folder.glob(".*-*"):
                shutil.rmtree(abandoned, ignore_errors=True)  # left by a killed process
            yield


def make_own(folder: Path) -> None:
    """Make a folder of this user alone, unless it exists; raises `OSError` if it is another's.

    Other users may write to the folder that contains it, but delete and rename only what is theirs
    there, as in /tmp. So once it is of this user, they cannot replace it.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.lstat()  # of a link, not of its target
    if not stat.S_ISDIR(facts.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(folder))
    if facts.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {facts.st_uid}", str(folder))
    if facts.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others can write to it", str(folder))
    if facts.st_mode & 0o077:
        folder.chmod(0o700)


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class DeviceSegments:
    """Segments on a device, which scans them exactly. They are copied there; nothing is on disk.

    Sealing keeps the number of matrices small and drops dead rows.
    """

    def __init__(self, device: ScanDevice) -> None:
        """Copy segments to `device`."""
        self._device = device
        self._numbers = count()
        self._built: dict[str, Segment] = {}  # built but not yet opened

    def key(self, vectors: Halves, parameters: IndexParameters) -> str:
        """Return a new key. No segment is ever found again by its content."""
        return f"device-{next(self._numbers)}"

    def matrix(self, shape: tuple[int, int]) -> Halves:
        """Return an empty matrix [n, d] in main memory."""
        return np.empty(shape, np.float16)

    def find(
        self, key: str, parameters: IndexParameters, *, shape: tuple[int, int]
    ) -> Segment | None:
        """Return a built segment, only once: it is freed when its last user drops it."""
        return self._built.pop(key, None)

    def build(self, key: str, vectors: Halves, parameters: IndexParameters) -> None:
        """Copy the vectors to the device. The parameters, which are for graphs, are ignored.

        Raises `SealError` if the device's memory is full. The rows then stay live.
        """
        try:
            self._built[key] = DeviceSegment(self._device, vectors)
        except DeviceUnavailable as error:
            raise SealError(str(error)) from error

    def interrupt(self) -> None:
        """Do nothing: a copy finishes within milliseconds."""

    def discard(self, key: str) -> None:
        """Forget a segment that was never opened."""
        self._built.pop(key, None)

    def prune(self, keep: Collection[str], *, older_than: float) -> None:
        """Do nothing, since nothing lies on disk."""


SegmentSource = SegmentStore | DeviceSegments  # the sealer's thread calls it
