"""What is large is called one after the other, and leaves the event loop time in between."""

import asyncio
import threading
import time
from itertools import pairwise

import pytest

from service.http.side_thread import SideThread


def test_calls_come_one_after_the_other_with_a_rest_between_them() -> None:
    spans: list[tuple[float, float]] = []

    def work() -> str:
        start = time.monotonic()
        time.sleep(0.05)
        spans.append((start, time.monotonic()))
        return threading.current_thread().name

    async def run() -> list[str]:
        thread = SideThread()
        return await asyncio.gather(*(thread.run(work) for _ in range(3)))

    assert len(set(asyncio.run(run()))) == 1
    rests = [after[0] - before[1] for before, after in pairwise(spans)]
    assert all(rest >= 0.04 for rest in rests)


def test_an_error_is_raised_where_the_call_is_awaited() -> None:
    async def run() -> None:
        await SideThread().run(int, "x")

    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(run())
