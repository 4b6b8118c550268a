"""Shows the progress of a long run on stderr: count, rate and time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.progress import BarColumn, Progress, TextColumn

from service.command_line import open_console

SECONDS = 10.0  # between two lines if stderr is no terminal

Report = Callable[[int], None]  # takes the number of items done since the last call


@contextmanager
def reported(total: int, what: str, *, done: int = 0) -> Iterator[Report]:
    """Yield a function that counts finished items; `done` of `total` are finished already.

    A terminal shows a bar; other outputs get a line every `SECONDS`.
    """
    console = open_console(stderr=True)
    now, start = done, monotonic()
    shown = start

    def line() -> str:
        seconds = monotonic() - start
        rate = (now - done) / seconds if seconds else 0.0
        counted = f"{now:,} of {total:,} {what}"
        left = f", {rate:,.0f}/s, {_duration((total - now) / rate)} left" if rate else ""
        return counted + left

    def add(items: int) -> None:
        nonlocal now, shown
        now += items
        if task is not None:
            bar.update(task, completed=now, description=line())
        elif monotonic() - shown >= SECONDS:
            shown = monotonic()
            console.print(line(), soft_wrap=True)

    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    on_terminal = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not on_terminal) as bar:
        task = bar.add_task(line(), total=total, completed=done) if on_terminal else None
        yield add


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
