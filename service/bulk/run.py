"""Answers all queries of a file in threads, part by part.

Encoding and searching, nine tenths of a query's time, leave the interpreter's lock to other
threads. Threads share one memory; processes were no faster on two cores and would hold one each.
One thread more than cores works while another waits for that lock or for the disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from service.bulk.answering import results
from service.bulk.formats import AnsweredPart, Format
from service.bulk.query_file import FileQuery, QueryFile, Survey
from service.bulk.work_folder import Job, WorkFolder
from service.core.errors import InvalidData
from service.core.types import PredictOptions
from service.engine.loaded_bundle import LoadedBundle

Progress = Callable[[int], None]  # is called with the rows that are done

# Of a part: a second of a thread, so that an interrupt is soon heeded and threads end together.
# Fewer rows would differ more in length where they are encoded together.
_MOST_ROWS = 1_024
_MOST_KEYWORDS = 65_536  # of a part, some 40 MB
_PARTS_A_THREAD = 2  # one that is answered, and one that waits
_SPARE_THREADS = 1
_SWITCH_SECONDS = 0.001  # how long the interpreter's lock is kept where other threads wait for it


def rows_of_part(top_k: int, *, explain: bool) -> int:
    """How many rows are answered together, so that what a thread holds stays bounded."""
    keywords = top_k * (10 if explain else 1)
    return max(1, min(_MOST_ROWS, _MOST_KEYWORDS // keywords))


@dataclass(frozen=True, kw_only=True)
class BulkRun:
    """Everything that one run needs."""

    queries: QueryFile
    survey: Survey
    job: Job
    options: PredictOptions
    loaded: LoadedBundle
    threads: int

    def answer(self, folder: WorkFolder, form: Format, progress: Progress) -> None:
        """Answer the parts that `folder` lacks; an interrupt keeps those that are answered.

        At most two parts a core are held, however long the file is. Raises `InvalidData` where it
        has become another one meanwhile.
        """

        def write(number: int, part: list[FileQuery]) -> int:
            folder.write(number, form.part(self._answered(number, part)))
            return len(part)

        pending: set[Future[int]] = set()
        rows = 0
        with _short_switches(), ThreadPoolExecutor(self.threads + _SPARE_THREADS) as pool:
            try:
                for number, part in enumerate(self._parts()):
                    rows += len(part)
                    if folder.has(number):
                        continue
                    if len(pending) >= _PARTS_A_THREAD * self.threads:
                        pending = _finished(pending, progress)
                    pending.add(pool.submit(write, number, part))
                while pending:
                    pending = _finished(pending, progress)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # those that run are still written
                raise
        if rows != self.rows:
            raise InvalidData(self.queries.path, "has changed meanwhile; call the command again")

    def rows_done(self, folder: WorkFolder) -> int:
        """How many rows lie in complete parts."""
        last = self.rows - (self.parts - 1) * self.job.part_rows
        return sum(
            last if number == self.parts - 1 else self.job.part_rows
            for number in range(self.parts)
            if folder.has(number)
        )

    @property
    def rows(self) -> int:
        """How many rows the file has."""
        return self.survey.rows

    @property
    def parts(self) -> int:
        """How many parts the file has."""
        return -(-self.rows // self.job.part_rows)

    def _parts(self) -> Iterator[list[FileQuery]]:
        queries = iter(self.queries)
        while part := list(islice(queries, self.job.part_rows)):
            yield part

    def _answered(self, number: int, part: list[FileQuery]) -> AnsweredPart:
        good = [query for query in part if not query.problem]
        return AnsweredPart(
            first_row=1 + number * self.job.part_rows,
            queries=part,
            results=results(self.loaded, good, self.options),
        )


@contextmanager
def _short_switches() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _finished(pending: set[Future[int]], progress: Progress) -> set[Future[int]]:
    """Wait for one part at least; returns those that are not done."""
    done, left = wait(pending, return_when=FIRST_COMPLETED)
    for future in done:
        progress(future.result())
    return left
