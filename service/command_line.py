"""Runs the command lines of `service`, `training` and `export`, and makes their consoles."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from cyclopts import App
from rich.console import Console

from service.core.errors import KeymatchError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal ended the command. No library takes a KeyboardInterrupt for an error of its own."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    @property
    def status(self) -> int:
        """The exit status of a command that the signal ended: 130 or 143."""
        return 128 + self.number

    def __str__(self) -> str:
        return signal.Signals(self.number).name


def run(app: App, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    A `KeymatchError` becomes one line on stderr and status 2. The line is not wrapped, so that grep
    finds it. So does an error of the operating system that names a file (no permission, a full
    disk), with status 1; any other error is a mistake in the program, and keeps its traceback.
    SIGINT (Ctrl-C) and SIGTERM end a command in order, so that it removes what it has half written,
    with status 130 and 143; a command may handle them in its own way.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    app.suppress_keyboard_interrupt = False  # cyclopts would exit without a word
    try:
        with signals_raised():
            result = app(tokens, result_action="return_value")
    except Interrupted as end:
        said = "the command was stopped before its output was complete; call it again"
        return _failed(f"{end}: {said}", status=end.status)
    except KeymatchError as error:
        return _failed(str(error), status=2)
    except OSError as error:
        if error.filename is None or error.strerror is None:
            raise
        return _failed(f"{error.filename}: {error.strerror}", status=1)
    return result if isinstance(result, int) else 0


@contextmanager
def signals_raised() -> Iterator[None]:
    """Raise `Interrupted` at a signal within the block; outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = {number: signal.signal(number, _raise) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console that prints every text as it is, or nothing if it is `quiet`.

    To rich, brackets in a path are markup, and the line number of `x.csv:100:` is an emoji.
    """
    return Console(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def _failed(message: str, *, status: int) -> int:
    open_console(stderr=True).print(f"error: {message}", soft_wrap=True)
    return status
