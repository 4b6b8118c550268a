"""Functions of a running service that a test holds, to see what happens meanwhile."""

import threading
from collections.abc import Callable
from typing import Any

import pytest


class Held:
    """A function that waits until it is let go."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.entered.set()
        assert self.released.wait(60)
        return self._function(*args, **kwargs)


def hold(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> Held:
    held = Held(getattr(owner, name))
    monkeypatch.setattr(owner, name, held)
    return held
