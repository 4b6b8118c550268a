"""The threads that answer queries, one batch of tasks after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Thread
from time import monotonic

from service.core.index.faiss_hnsw import search_in_one_thread
from service.engine.reading.batch_answer import Outcome, answer_batch, failure
from service.engine.reading.task_queue import Errand, TaskQueue
from service.telemetry import Telemetry

log = logging.getLogger("keymatch")


class AnswerThreads:
    """Threads that take from one queue; `close` ends them when it is empty."""

    def __init__(self, queue: TaskQueue, telemetry: Telemetry, *, threads: int) -> None:
        """Start the threads."""
        self._queue, self._telemetry = queue, telemetry
        self._threads = [
            Thread(target=self._run, name=f"answer-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[], None]) -> Future[None]:
        """Call `function` in the next free thread."""
        return self._queue.send(function)

    def close(self) -> None:
        """Answer what waits, then end the threads."""
        self._queue.close()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        search_in_one_thread()
        while (work := self._queue.take()) is not None:
            if isinstance(work, Errand):
                _run_errand(work)
                continue
            start, outcomes = monotonic(), list[Outcome]()
            try:
                answer_batch(work, self._telemetry, outcomes)
            except BaseException as error:  # nobody may be left waiting, whatever happens
                outcomes += [failure(task.request, error) for task in work.tasks]
            finally:
                self._queue.finish(work, seconds=monotonic() - start)
                _deliver(outcomes)


def _run_errand(errand: Errand) -> None:
    try:
        errand.function()
    except BaseException as error:
        errand.future.set_exception(error)
    else:
        errand.future.set_result(None)


def _deliver(outcomes: Sequence[Outcome]) -> None:
    """Hand all outcomes over at once: to wake the event loop costs more than to complete one."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome.request.loop, []).append(outcome)
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(_complete, own)
        except RuntimeError:  # the loop has ended, and with it all who waited
            log.warning("answers came after the server had stopped", extra={"answers": len(own)})


def _complete(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        outcome.complete()
