"""Pause a function call in a running service, to test what happens meanwhile."""

import threading
from collections.abc import Callable
from typing import Any

import pytest


class Held:
    """Wraps a function: each call sets `entered` and waits for `released` before it runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.entered.set()
        assert self.released.wait(60)
        return self._function(*args, **kwargs)


def hold(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> Held:
    """Replace the function `name` of `owner` with one that waits until it is released."""
    held = Held(getattr(owner, name))
    monkeypatch.setattr(owner, name, held)
    return held
