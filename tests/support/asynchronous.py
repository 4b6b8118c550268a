"""Run tests that are coroutines."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test on its own event loop."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run
