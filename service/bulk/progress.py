"""How far a long run is, on stderr: count, rate and time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from service.command_line import open_console

SECONDS = 10.0  # between two lines where stderr is no terminal

Report = Callable[[int], None]  # is called with the items that are done since the last call


@contextmanager
def reported(total: int, what: str, *, done: int = 0) -> Iterator[Report]:
    """Yield what counts items of `total`; `done` were there before and say nothing of the rate.

    A terminal shows a bar, everything else gets a line now and then.
    """
    console = open_console(stderr=True)
    count = _Count(total=total, what=what, before=done)
    if not console.is_terminal:
        yield lambda items: count.add(items, console)
        return
    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(count.line(), total=total, completed=done)

        def report(items: int) -> None:
            count.add(items)
            bar.update(task, completed=count.done, description=count.line())

        yield report


class _Count:
    """Counts items and describes them."""

    def __init__(self, *, total: int, what: str, before: int) -> None:
        self._total, self._what, self._before = total, what, before
        self.done = before
        self._start = self._shown = monotonic()

    def add(self, items: int, console: Console | None = None) -> None:
        self.done += items
        if console is not None and monotonic() - self._shown >= SECONDS:
            self._shown = monotonic()
            console.print(self.line(), soft_wrap=True)

    def line(self) -> str:
        seconds = monotonic() - self._start
        rate = (self.done - self._before) / seconds if seconds else 0.0
        line = f"{self.done:,} of {self._total:,} {self._what}"
        if not rate:
            return line
        return f"{line}, {rate:,.0f}/s, {_duration((self._total - self.done) / rate)} left"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
