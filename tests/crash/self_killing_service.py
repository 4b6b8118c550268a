"""A service that kills itself: `python self_killing_service.py SIGNAL PLACE before|after COUNT`.

Further arguments are those of `python -m service`. The process sends itself SIGNAL (KILL, TERM)
before or after the COUNT-th call of PLACE, which is MODULE:FUNCTION, at moments that a signal from
outside would seldom hit.
"""

import importlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from itertools import count as counter
from typing import Any


def kill_at(name: str, place: str, when: str, count: int) -> None:
    """Wrap a function; the wrapper sends this process a signal at its COUNT-th call."""
    module, _, path = place.partition(":")
    *owners, last = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    number = signal.Signals[f"SIG{name}"]
    setattr(owner, last, _killing(getattr(owner, last), number, when, count))


def _killing(
    function: Callable[..., Any], number: signal.Signals, when: str, count: int
) -> Callable[..., Any]:
    calls = counter(1)

    def killing(*args: Any, **kwargs: Any) -> Any:
        last = next(calls) == count
        if last and when == "before":
            os.kill(os.getpid(), number)
        result = function(*args, **kwargs)
        if last and when == "after":
            os.kill(os.getpid(), number)
        return result

    return killing


if __name__ == "__main__":
    name, place, when, count = sys.argv[1:5]
    del sys.argv[1:5], sys.path[0]
    kill_at(name, place, when, int(count))
    runpy.run_module("service", run_name="__main__", alter_sys=True)
