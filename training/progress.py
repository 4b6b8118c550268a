"""Bars for commands of several stages."""

from __future__ import annotations

from collections.abc import Callable

from rich.progress import Progress, TaskID

Report = Callable[[str, int, int], None]  # what, done, total


def reported(progress: Progress) -> Report:
    """A bar for each stage, shown from when it is first heard of."""
    steps: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in steps:
            steps[what] = progress.add_task(what, total=total)
        progress.update(steps[what], completed=done)

    return report
