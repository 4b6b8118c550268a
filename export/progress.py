"""Progress bars of an export."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


def progress_bars(console: Console) -> Progress:
    """Return a display with one bar per step: finished and total items, and the time left."""
    return Progress(
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
    )


def completed(progress: Progress, step: TaskID) -> Callable[[int], None]:
    """Return a callback that sets how many items of a step are finished."""
    return lambda done: progress.update(step, completed=done)
