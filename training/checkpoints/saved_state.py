"""Where a run's saved state lies, and how far it is; readable without torch."""

from __future__ import annotations

from pathlib import Path

import orjson

LAST = "last"  # the folder of the state that --resume reads, in the run's folder
STATE = "state.json"
NOTHING_TO_RESUME = "there is nothing to resume; check --out, or leave --resume out to start anew"


def newest(folder: Path) -> Path | None:
    """The folder of the newest complete state; None where there is none.

    A stop between the two renames of `state.save` leaves the state under another name.
    """
    names = (
        folder,
        folder.with_name(f".{folder.name}.new"),
        folder.with_name(f".{folder.name}.old"),
    )
    return next((name for name in names if (name / STATE).is_file()), None)


def saved_step(run: Path) -> int | None:
    """The step of a run's newest state; None where there is none."""
    saved = newest(run / LAST)
    if saved is None:
        return None
    return int(orjson.loads((saved / STATE).read_bytes())["progress"]["step"])
