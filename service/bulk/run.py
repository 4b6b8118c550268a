"""Answers all queries of a file in threads, part by part.

Encoding and searching, nine tenths of a query's time, leave the interpreter's lock to other
threads. Threads share one memory; processes were no faster on two cores and would hold one each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice

from service.bulk.answering import answer
from service.bulk.formats import AnsweredPart, Format
from service.bulk.query_file import FileQuery, QueryFile
from service.bulk.work_folder import WorkFolder
from service.core.errors import InvalidData
from service.core.types import PredictOptions
from service.engine.loaded_bundle import LoadedBundle

Progress = Callable[[int], None]  # is called with the rows that are done

_MOST_ROWS = 2_048  # of a part: some two seconds of a thread, so an interrupt is soon heeded
_MOST_KEYWORDS = 65_536  # of a part, some 40 MB
_PARTS_A_THREAD = 2  # one that is answered, and one that waits


def rows_of_part(top_k: int, *, explain: bool) -> int:
    """How many rows are answered together, so that what a thread holds stays bounded."""
    keywords = top_k * (10 if explain else 1)
    return max(1, min(_MOST_ROWS, _MOST_KEYWORDS // keywords))


@dataclass(frozen=True, kw_only=True)
class BulkRun:
    """Everything that one run needs."""

    queries: QueryFile
    rows: int  # of the whole file
    part_rows: int
    folder: WorkFolder
    form: Format
    loaded: LoadedBundle
    options: PredictOptions
    threads: int

    def answer(self, progress: Progress) -> None:
        """Answer the parts that are missing; an interrupt keeps those that are answered.

        At most two parts a thread are held, however long the file is. Raises `InvalidData` where it
        has become another one meanwhile.
        """
        pending: set[Future[int]] = set()
        rows = 0
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                for number, part in enumerate(self._parts()):
                    rows += len(part)
                    if self.folder.has(number):
                        continue
                    if len(pending) >= _PARTS_A_THREAD * self.threads:
                        pending = _finished(pending, progress)
                    pending.add(pool.submit(self._answer_part, number, part))
                while pending:
                    pending = _finished(pending, progress)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # those that run are still written
                raise
        if rows != self.rows:
            raise InvalidData(self.queries.path, "has changed meanwhile; call the command again")

    def rows_done(self) -> int:
        """How many rows lie in complete parts."""
        last = self.rows - (self.parts - 1) * self.part_rows
        return sum(
            last if number == self.parts - 1 else self.part_rows
            for number in range(self.parts)
            if self.folder.has(number)
        )

    @property
    def parts(self) -> int:
        """How many parts the file has."""
        return -(-self.rows // self.part_rows)

    def _parts(self) -> Iterator[list[FileQuery]]:
        queries = iter(self.queries)
        while part := list(islice(queries, self.part_rows)):
            yield part

    def _answer_part(self, number: int, part: list[FileQuery]) -> int:
        texts = [query.text for query in part if not query.problem]
        answered = AnsweredPart(
            first_row=1 + number * self.part_rows,
            queries=part,
            predictions=answer(self.loaded, texts, self.options),
        )
        self.folder.write(number, self.form.part(answered))
        return len(part)


def _finished(pending: set[Future[int]], progress: Progress) -> set[Future[int]]:
    """Wait for one part at least; returns those that are not done."""
    done, left = wait(pending, return_when=FIRST_COMPLETED)
    for future in done:
        progress(future.result())
    return left
