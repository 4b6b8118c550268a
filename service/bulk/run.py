"""Answers all queries of a file in threads, part by part, and keeps the parts in a work folder.

Encoding and searching, nine tenths of a query's time, release the GIL. Threads share one memory;
each process would need its own. There is one more thread than cores, to work while another one
waits for the GIL or for the disk.

The work folder `.OUT.predict/` exists next to the output file until that is complete. It holds
`job.json`, the facts that all parts have in common, and a file `NUMBER.CHECKSUM.part` for each
part, written atomically and synced to disk. The checksum covers the facts and the part. Another
call with the same facts continues with the missing parts. A damaged part, or one with other facts,
is removed and counts as missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, make_dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import orjson

from service.bulk.answering import results
from service.bulk.formats import AnsweredPart, Format
from service.bulk.progress import Report
from service.bulk.query_file import FileQuery, QueryFile, Survey
from service.core.errors import Busy, InvalidConfig, InvalidData
from service.core.files.atomic import refuse_existing, sync, write_file, writing
from service.core.options import BULK_OPTIONS, PredictOptions
from service.core.times import SECOND
from service.engine.loaded_bundle import LoadedBundle

JOB = "job.json"
FORMAT = 1  # version of the parts' format
# A thread answers a part in about a second, so interrupts act soon and threads end together. With
# smaller parts, texts that are encoded together would differ more in length.
_MOST_ROWS = 1_024
_MOST_KEYWORDS = 65_536  # per part, some 40 MB
_PARTS_A_THREAD = 2  # one being answered, and one waiting
_SPARE_THREADS = 1
_SWITCH_SECONDS = 0.001  # how long a thread may keep the GIL if others wait


def stored_options(options: PredictOptions) -> dict[str, Any]:
    """Return the options of `keymatch predict` as values of JSON; None is an empty text."""
    values = {one.field: getattr(options, one.field) for one in BULK_OPTIONS}
    for name, value in values.items():
        if not isinstance(value, int | float):
            joined = ",".join(value) if isinstance(value, tuple) else repr(value)
            values[name] = "" if value is None else joined
    return values


_Options: Any = make_dataclass(
    "_Options",
    [(name, Any, default) for name, default in stored_options(PredictOptions()).items()],
    frozen=True,
    kw_only=True,
)


@dataclass(frozen=True, kw_only=True)
class Job(_Options):  # type: ignore[misc]
    """The inputs and options on which the answers depend.

    `version` is the newest log event that they reflect, `begun` the Unix time at which they are
    given, and `format` the version of the parts' format.
    """

    bundle: str  # fingerprint of the bundle's manifest
    state: str  # id of the state's log, "" without a state
    input: str  # digest of all queries
    part_rows: int
    escape_formulas: bool = False
    version: int = 0
    begun: float = 0.0
    format: int = FORMAT

    def difference(self, other: Job) -> str:
        """Describe the first difference, except in `version` and `begun`; "" if there is none."""
        mine, theirs = asdict(self), asdict(other)
        for name, value in mine.items():
            if name not in ("version", "begun") and value != theirs[name]:
                if isinstance(value, str):
                    return f"another {name}"
                return f"{name} = {theirs[name]} in place of {value}"
        return ""


class WorkFolder:
    """The work folder of one output file; `opened` locks it."""

    def __init__(self, out: Path) -> None:
        """Set the paths; `opened` creates the folder."""
        self.out = out.absolute()
        self.folder = self.out.parent / f".{self.out.name}.predict"
        self._facts = b""  # the job as it is stored
        self._parts: dict[int, Path] = {}
        self.damaged = 0  # damaged parts of an interrupted run, to be made again

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the folder and hold its lock.

        Raises `InvalidData` if the output exists or cannot be written, and `Busy` while another
        process writes it.
        """
        refuse_existing(self.out)
        with writing(self.out, self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY)
            try:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise Busy(f"{self.out} is being written by another process") from error
                try:
                    yield
                finally:
                    if not self._any_part():  # nothing to continue from
                        shutil.rmtree(self.folder, ignore_errors=True)
            finally:
                os.close(descriptor)

    def begin(self, job: Job) -> Job:
        """Store the job; returns the job of an interrupted run instead, to continue it.

        Raises `InvalidConfig` if that run had other arguments.
        """
        begun = self._begun()
        if begun is None:
            begun = job
            write_file(self.folder / JOB, orjson.dumps(asdict(job)))
        difference = begun.difference(job)
        if difference:
            raise InvalidConfig(
                f"{self.out}: {self.folder} keeps a run that was interrupted, and this one has"
                f" {difference}: give the same arguments to go on, or remove that folder to begin"
                " again"
            )
        self.of_job(begun)
        self._keep_whole_parts()
        return begun

    def has(self, number: int) -> bool:
        """Whether a part is complete."""
        return number in self._parts

    def of_job(self, job: Job) -> WorkFolder:
        """Return this folder for writing parts of a job that another process has begun."""
        self._facts = orjson.dumps(asdict(job))
        return self

    def write(self, number: int, content: bytes) -> Path:
        """Write a part atomically; returns its file. Any thread may call this."""
        path = self.folder / f"{number:06}.{self._checksum(content)}.part"
        write_file(path, content)
        self.add(number, path)
        return path

    def add(self, number: int, path: Path) -> None:
        """Take a part's file as complete."""
        self._parts[number] = path

    def finish(self, parts: int, form: Format) -> None:
        """Join the first `parts` parts to the output atomically, and remove the folder.

        Raises `InvalidData` for a part that was damaged after it was written, and removes it.
        """
        joined = self.folder / "joined"
        form.join((self._whole(self._parts[number]) for number in range(parts)), joined)
        sync(joined)
        refuse_existing(self.out)
        joined.rename(self.out)
        sync(self.out.parent)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begun(self) -> Job | None:
        """Return the job of an interrupted run that has finished a part, or None."""
        path = self.folder / JOB
        if not path.exists() or not self._any_part():
            return None
        try:
            return Job(**orjson.loads(path.read_bytes()))
        except (TypeError, ValueError) as error:
            message = f"is damaged; remove {self.folder} to begin again"
            raise InvalidData(path, message) from error

    def _keep_whole_parts(self) -> None:
        """Find the parts of an interrupted run; remove damaged ones."""
        for path in sorted(self.folder.glob("*.part")):
            number = path.name.split(".")[0]
            if number.isdecimal() and self._is_whole(path):
                self._parts[int(number)] = path
            else:
                path.unlink()
                self.damaged += 1

    def _whole(self, path: Path) -> Path:
        if not self._is_whole(path):
            path.unlink()
            advice = "it was removed; the same command answers its rows again"
            raise InvalidData(path, f"was damaged on the disk; {advice}")
        return path

    def _is_whole(self, path: Path) -> bool:
        return path.suffixes[0][1:] == self._checksum(path.read_bytes())

    def _checksum(self, content: bytes) -> str:
        return hashlib.sha256(self._facts + content).hexdigest()

    def _any_part(self) -> bool:
        return any(self.folder.glob("*.part"))


def rows_of_part(top_k: int, *, explain: bool) -> int:
    """Return the number of rows of a part, which bounds a thread's memory."""
    keywords = top_k * (10 if explain else 1)
    return max(1, min(_MOST_ROWS, _MOST_KEYWORDS // keywords))


@dataclass(frozen=True, kw_only=True)
class BulkRun:
    """One run over a file."""

    queries: QueryFile
    survey: Survey
    job: Job
    options: PredictOptions
    loaded: LoadedBundle
    threads: int

    def answer(self, folder: WorkFolder, form: Format, progress: Report) -> None:
        """Answer the parts missing in `folder`; after an interrupt, finished parts are kept.

        At most two parts per thread are in memory, however long the file is. Raises `InvalidData`
        if the file has changed meanwhile.
        """

        def write(number: int, part: list[FileQuery]) -> int:
            answered = answered_part(self.loaded, self.job, self.options, number, part)
            folder.write(number, form.part(answered))
            return len(part)

        pending: set[Future[int]] = set()
        sys.setswitchinterval(_SWITCH_SECONDS)
        with ThreadPoolExecutor(self.threads + _SPARE_THREADS) as pool:
            try:
                for number, part in self.missing(folder):
                    if len(pending) >= _PARTS_A_THREAD * self.threads:
                        pending = _finished(pending, progress)
                    pending.add(pool.submit(write, number, part))
                while pending:
                    pending = _finished(pending, progress)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # running parts are still written
                raise

    def missing(self, folder: WorkFolder) -> Iterator[tuple[int, list[FileQuery]]]:
        """Yield number and queries of each part that is missing in `folder`.

        Raises `InvalidData` at the end if the file has changed meanwhile.
        """
        queries, rows = iter(self.queries), 0
        for number in count():
            part = list(islice(queries, self.job.part_rows))
            if not part:
                break
            rows += len(part)
            if not folder.has(number):
                yield number, part
        if rows != self.survey.rows:
            raise InvalidData(self.queries.path, "has changed meanwhile; call the command again")

    def rows_done(self, folder: WorkFolder) -> int:
        """Count the rows in complete parts."""
        most = self.job.part_rows
        complete = (number for number in range(self.parts) if folder.has(number))
        return sum(min(most, self.survey.rows - number * most) for number in complete)

    @property
    def parts(self) -> int:
        """The number of parts of the file."""
        return -(-self.survey.rows // self.job.part_rows)


def answered_part(
    loaded: LoadedBundle, job: Job, options: PredictOptions, number: int, part: list[FileQuery]
) -> AnsweredPart:
    """Answer the queries of one part in the calling thread."""
    good = [query for query in part if not query.problem]
    found = results(loaded, good, options, now=round(job.begun * SECOND))
    return AnsweredPart(first_row=1 + number * job.part_rows, queries=part, results=found)


def _finished(pending: set[Future[int]], progress: Report) -> set[Future[int]]:
    """Wait for at least one part; returns the unfinished ones."""
    done, left = wait(pending, return_when=FIRST_COMPLETED)
    for future in done:
        progress(future.result())
    return left
