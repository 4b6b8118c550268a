"""Waiting for what another thread or process does."""

import time
from typing import Any

READY_WITHIN = 60  # seconds; a busy machine must not fail a test
POLL_SECONDS = 0.01


def wait_for(condition: Any) -> Any:
    """The condition's first true value; fails when there is none in time."""
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(POLL_SECONDS)
    raise AssertionError("the awaited condition did not come true")
