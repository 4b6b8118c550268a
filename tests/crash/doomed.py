"""`python doomed.py MODULE:FUNCTION before|after COUNT ...`: a service that kills itself.

The rest of the command line is that of `python -m service`. The process ends by SIGKILL at the
COUNT-th call of FUNCTION, so that moments can be hit that are too short to be watched from outside.
"""

import importlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from itertools import count as counter
from typing import Any


def doom(place: str, when: str, count: int) -> None:
    """Exchange a function for one that ends this process."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, _dying(getattr(owner, name), when, count))


def _dying(function: Callable[..., Any], when: str, count: int) -> Callable[..., Any]:
    calls = counter(1)

    def dying(*args: Any, **kwargs: Any) -> Any:
        last = next(calls) == count
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return dying


if __name__ == "__main__":
    place, when, count = sys.argv[1:4]
    del sys.argv[1:4], sys.path[0]
    doom(place, when, int(count))
    runpy.run_module("service", run_name="__main__", alter_sys=True)
