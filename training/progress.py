"""Shows a command's progress: bars on a terminal, else a line on stderr every ten seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from service.command_line import open_console

Report = Callable[[str, int, int], None]  # stage, done, total

SECONDS = 10.0  # between two lines


class PlainLines:
    """Writes lines such as "encode: 3,072 of 24,237 (13 %), 40 s left"; the first one at once."""

    def __init__(
        self,
        write: Callable[[str], None] | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Write to stderr by default."""
        self._write, self._clock = write or say, clock
        self._stage = ""
        self._first = self._last = 0  # the values of `done` in the stage's first and newest call
        self._began = self._due = 0.0

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Write a line about `stage`, unless one was written less than `SECONDS` ago."""
        now = self._clock()
        if stage != self._stage or done < self._last:
            self._stage, self._first, self._began, self._due = stage, done, now, now
        self._last = done
        if now < self._due and done < total:
            return
        self._due = now + SECONDS
        share = 100 * done / total if total else 100.0
        line = f"{stage}: {done:,} of {total:,} ({share:.0f} %)"
        if self._first < done < total:
            left = (now - self._began) * (total - done) / (done - self._first)
            line += f", {_duration(left)} left"
        self._write(f"{line}, {note}" if note else line)


def say_nothing(stage: str, done: int, total: int, note: str = "") -> None:
    """A `Report` that shows nothing, as on a quiet console."""


def say(line: str) -> None:
    """Write a plain line to stderr."""
    open_console(stderr=True).print(line, soft_wrap=True)


@contextmanager
def stages(console: Console) -> Iterator[Report]:
    """Yield a callback that shows a bar with share and time left for each stage."""
    if not console.is_terminal:
        yield PlainLines() if not console.quiet else say_nothing
        return
    columns = (BarColumn(), TaskProgressColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description:<9}"), *columns, console=console) as progress:
        yield reported(progress)


@contextmanager
def status(console: Console, text: str) -> Iterator[None]:
    """Show `text` while the block runs, for work whose progress cannot be counted."""
    if not console.is_terminal:
        if not console.quiet:
            say(text)
        yield
        return
    with console.status(text):
        yield


def reported(progress: Progress) -> Report:
    """Return a callback that shows a bar for each stage, from the stage's first call on."""
    bars: dict[str, TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            bars[stage] = progress.add_task(stage, total=total)
        progress.update(bars[stage], completed=done, total=total)

    return report


def _duration(seconds: float) -> str:
    """Return a text such as "40 s", "12 min" or "3 h 20 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
