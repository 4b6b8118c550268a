"""One thread beside the event loop for bodies that take longer than a few milliseconds to parse.

There is one thread, so large bodies wait for each other and not for small ones. Parsing 4 MB of
JSON holds the interpreter's lock for some 50 ms, and the event loop releases that lock whenever it
reads a socket. After each call the thread therefore rests for as long as the call took, and half of
the time is left to the loop. During a call the lock changes hands five times as often as usual:
the loop waits for it anew after each of the sockets that a large body fills.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic, sleep
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

MOST_REST = 0.1  # seconds


class SideThread:
    """Calls functions one after the other; the thread starts with the first."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="large")
        self._rests_until = 0.0  # by `monotonic`; belongs to the thread

    async def run(
        self,
        function: Callable[Parameters, Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """What `function` returns or raises."""
        loop = asyncio.get_running_loop()
        call = partial(function, *arguments, **named)
        return await loop.run_in_executor(self._executor, self._call, call)

    def _call(self, function: Callable[[], Result]) -> Result:
        sleep(max(0.0, self._rests_until - monotonic()))
        start, usual = monotonic(), sys.getswitchinterval()
        sys.setswitchinterval(usual / 5)
        try:
            return function()
        finally:
            sys.setswitchinterval(usual)
            end = monotonic()
            self._rests_until = end + min(end - start, MOST_REST)
