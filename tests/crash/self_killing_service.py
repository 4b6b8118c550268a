"""A service that kills itself: `python self_killing_service.py MODULE:FUNCTION before|after COUNT`.

Further arguments are those of `python -m service`. The process sends itself SIGKILL before or after
the COUNT-th call of FUNCTION, at moments that a kill from outside would seldom hit.
"""

import importlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from itertools import count as counter
from typing import Any


def kill_at(place: str, when: str, count: int) -> None:
    """Wrap a function; the wrapper kills this process at its COUNT-th call."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, _killing(getattr(owner, name), when, count))


def _killing(function: Callable[..., Any], when: str, count: int) -> Callable[..., Any]:
    calls = counter(1)

    def killing(*args: Any, **kwargs: Any) -> Any:
        last = next(calls) == count
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return killing


if __name__ == "__main__":
    place, when, count = sys.argv[1:4]
    del sys.argv[1:4], sys.path[0]
    kill_at(place, when, int(count))
    runpy.run_module("service", run_name="__main__", alter_sys=True)
