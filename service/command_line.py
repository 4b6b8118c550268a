"""Runs the commands of all packages, and creates their consoles."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from inspect import cleandoc
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from service.core.errors import KeymatchError, MissingExtra
from service.core.files.atomic import REFUSALS, disk_refusal

CACHE_VARIABLE, DEFAULT_CACHE = "KEYMATCH_CACHE", Path("~/.cache/keymatch")
CacheOption = Annotated[Path, Parameter(env_var=CACHE_VARIABLE)]
STATE_VARIABLE = "KEYMATCH_STATE"  # replaces --state, which other users of the machine can read
SIGNALS = (signal.SIGINT, signal.SIGTERM)
OURS = ("service", "training", "export")
SERVING = ("faiss", "onnxruntime")  # packages of the extra `cpu`; others have their own extras
IMPORTED_BY_COMMANDS = (*SERVING, "scipy")  # packages of extras that modules with commands import
# Several lines of a docstring with equal indentation, except the line below a section's name.
PARAGRAPH = re.compile(r"(?m)^( *)(?!---)\S.*(?:\n\1(?!---)\S.*)+")


class Interrupted(KeyboardInterrupt):
    """A signal ended the command. It is a KeyboardInterrupt, so libraries pass it on."""

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

    | ends by                                                          | stderr    | status   |
    |------------------------------------------------------------------|-----------|----------|
    | `KeymatchError`                                                  | one line  | 2        |
    | an error that names a file, or of a full or read-only disk       | one line  | 1        |
    | SIGINT, SIGTERM: half-written files are removed                  | one line  | 130, 143 |
    | any other error, which is a mistake in the program               | traceback |          |

    No command's help needs an extra. A command whose extra is missing is refused before it begins;
    the message says how to install it.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with signals_handled(_raise):
            result = _called(app, tokens)
    except Interrupted as end:
        said = "the command was stopped before its output was complete; call it again"
        return _failed(f"{end}: {said}", status=end.status)
    except KeymatchError as error:
        return _failed(str(error), status=2)
    except OSError as error:
        if error.strerror is None or (error.filename is None and error.errno not in REFUSALS):
            raise
        return _failed(f"{error.filename or _unnamed()}: {error.strerror}", status=1)
    return result if isinstance(result, int) else 0


@contextmanager
def signals_handled(receive: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `receive` at a signal during the block. Outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = {number: signal.signal(number, receive) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that prints texts unchanged, or nothing if `quiet`.

    By default, rich treats brackets in a path as markup, and `:100:` as an emoji.
    """
    return Console(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)


def say(*lines: str, stderr: bool = False) -> None:
    """Print each line unchanged, whatever the terminal's width."""
    open_console(stderr=stderr).print(*lines, sep="\n", soft_wrap=True)


class _StandIns(MetaPathFinder, Loader):
    """An importer that replaces missing packages while modules of commands are imported."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        package, inner, _ = fullname.partition(".")
        if inner and not isinstance(sys.modules.get(package), _StandIn):
            return None  # an installed package imports an optional part of its own
        if package not in IMPORTED_BY_COMMANDS:
            return None
        self.missing.append(package)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StandIn(ModuleType):
    """A module in which every name is a class, so names can be imported and used as types."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _called(app: App, tokens: Sequence[str]) -> object:
    """Call the command named by the tokens. Raises `MissingExtra` if a package is missing."""
    room = app.name[0]
    try:
        with _standing_in() as missing:
            _show_whole_help(app, tokens)
            command, bound, _ = app.parse_args(tokens)
            package = command.__module__.partition(".")[0]
            if package == "cyclopts":  # cyclopts itself prints help or writes completions
                return command(*bound.args, **bound.kwargs)
        room = package if package in OURS else room
        if missing:
            raise _missing(missing[0], room)
        return command(*bound.args, **bound.kwargs)
    except ImportError as error:
        cause = error.__cause__ or error  # cyclopts wraps errors on importing a command's module
        package = (getattr(cause, "name", None) or "").partition(".")[0]
        if not isinstance(cause, ModuleNotFoundError) or package in ("", *OURS):
            raise
        raise _missing(package, room) from error


@contextmanager
def _standing_in() -> Iterator[list[str]]:
    """Allow importing commands' modules without their extras; yield the missing packages."""
    stand_ins = _StandIns()
    sys.meta_path.append(stand_ins)  # last: asked only if no other finder succeeds
    try:
        yield stand_ins.missing
    finally:
        sys.meta_path.remove(stand_ins)


def _show_whole_help(app: App, tokens: Sequence[str]) -> None:
    """Make the named command's help show its whole docstring; lists of commands show one line.

    Each paragraph becomes one line, which the terminal's width breaks.
    """
    for name in tokens:
        if name not in app:
            return
        app = app[name]
        command = app.default_command
        if isinstance(command, FunctionType) and command.__doc__:
            app.help = None
            command.__doc__ = PARAGRAPH.sub(
                lambda lines: lines[1] + " ".join(lines[0].split()), cleandoc(command.__doc__)
            )


def _missing(package: str, room: str) -> MissingExtra:
    serves = package in SERVING or room in ("keymatch", "service")
    return MissingExtra(package, extra="cpu" if serves else room)


def _unnamed() -> str:
    """Describe an error that names no file: standard output, or a full temporary folder."""
    try:
        sys.stdout.flush()
    except OSError:
        # Otherwise the interpreter would report the unwritten output again at its end.
        sys.stdout = open(os.devnull, "w")
        return "standard output"
    temporary = tempfile.gettempdir()
    return temporary if disk_refusal(Path(temporary)) else "standard output or another open file"


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def _failed(message: str, *, status: int) -> int:
    say(f"error: {message}", stderr=True)
    return status
