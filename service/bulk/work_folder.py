"""The work folder of a run: the answered parts lie beside the output file until it is complete.

`.OUT.predict/` holds `job.json`, the facts that all parts have in common, and `000000.part`, ... ,
each of which appears whole and synced to the disk. Another call with the same facts goes on with
the parts that are missing. The folder is removed once `OUT` is complete.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from service.bulk.formats import Format
from service.core.errors import Busy, InvalidConfig, InvalidData
from service.core.files.atomic import refuse_existing, sync, write_file

JOB = "job.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the answers depend on. `version` is the newest event of the log that they reflect."""

    bundle: str  # the fingerprint of its manifest
    state: str  # the id of its log, "" without one
    input: str  # the digest of all queries
    top_k: int
    depth: int
    memorization: float
    explain: bool
    candidates: int
    part_rows: int
    version: int = 0

    def difference(self, other: Job) -> str:
        """The first field but `version` in which the jobs differ, with both values; "" if none."""
        mine, theirs = asdict(self), asdict(other)
        for name, value in mine.items():
            if name != "version" and value != theirs[name]:
                if isinstance(value, str):
                    return f"another {name}"
                return f"{name} = {theirs[name]} in place of {value}"
        return ""


class WorkFolder:
    """The folder of one output file; `opened` holds its lock."""

    def __init__(self, out: Path) -> None:
        """Nothing is created yet."""
        self.out = out.absolute()
        self.folder = self.out.parent / f".{self.out.name}.predict"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the folder and hold its lock.

        Raises `InvalidData` if the output exists or cannot be written, and `Busy` while another
        process writes it.
        """
        refuse_existing(self.out)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._lock(descriptor)
            try:
                yield
            finally:
                if not self._any_part():  # so nothing is lost
                    shutil.rmtree(self.folder, ignore_errors=True)
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            os.close(descriptor)

    def begin(self, job: Job) -> Job:
        """Note what the parts depend on; returns the job of an interrupted run to go on with it.

        Raises `InvalidConfig` where that run had other arguments.
        """
        begun = self._begun()
        if begun is None:
            write_file(self.folder / JOB, orjson.dumps(asdict(job)))
            return job
        difference = begun.difference(job)
        if difference:
            raise InvalidConfig(
                f"{self.out}: {self.folder} keeps a run that was interrupted, and this one has"
                f" {difference}: give the same arguments to go on, or remove that folder to begin"
                " anew"
            )
        return begun

    def has(self, number: int) -> bool:
        """Whether a part is complete."""
        return self._part(number).exists()

    def write(self, number: int, content: bytes) -> None:
        """Write a part, whole or not at all; any thread may call this."""
        write_file(self._part(number), content)

    def finish(self, parts: int, form: Format) -> None:
        """Join so many parts to the output, which appears complete, and remove the folder."""
        joined = self.folder / "joined"
        form.join((self._part(number) for number in range(parts)), joined)
        sync(joined)
        refuse_existing(self.out)
        joined.rename(self.out)
        sync(self.out.parent)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begun(self) -> Job | None:
        """The job of a run that was interrupted after its first part, None if there is none."""
        path = self.folder / JOB
        if not path.exists() or not self._any_part():
            return None
        try:
            return Job(**orjson.loads(path.read_bytes()))
        except (TypeError, ValueError) as error:
            message = f"is damaged; remove {self.folder} to begin anew"
            raise InvalidData(path, message) from error

    def _any_part(self) -> bool:
        return any(self.folder.glob("*.part"))

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"{self.out} is being written by another process") from error

    def _part(self, number: int) -> Path:
        return self.folder / f"{number:06}.part"

    def _unwritable(self, error: OSError) -> InvalidData:
        return InvalidData(self.out, f"cannot be written: {error.strerror or error}")
