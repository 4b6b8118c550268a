"""Progress bars for commands of several stages."""

from __future__ import annotations

from collections.abc import Callable

from rich.progress import Progress, TaskID

Report = Callable[[str, int, int], None]  # stage, done, total


def reported(progress: Progress) -> Report:
    """A callback that shows a bar for each stage, from its first call on."""
    bars: dict[str, TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            bars[stage] = progress.add_task(stage, total=total)
        progress.update(bars[stage], completed=done)

    return report
