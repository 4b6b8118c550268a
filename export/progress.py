"""The bars of a long export."""

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
    """One bar a step, with what is done and the time that is left."""
    return Progress(
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
    )


def completed(progress: Progress, step: TaskID) -> Callable[[int], None]:
    """Tell a bar how many are done."""
    return lambda done: progress.update(step, completed=done)
