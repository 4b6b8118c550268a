"""Wait for another thread or process."""

import time
from typing import Any

READY_WITHIN = 180  # seconds; long enough for a busy machine
POLL_SECONDS = 0.01


def wait_for(condition: Any) -> Any:
    """Call `condition` until its value is true; return the value. Fails after READY_WITHIN."""
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"the condition did not become true within {READY_WITHIN} s")
