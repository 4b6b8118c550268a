"""The place and the step of a run's saved state; readable without torch."""

from __future__ import annotations

from pathlib import Path

import orjson

LAST = "last"  # the folder of the state that --resume reads, in the run's folder
STATE = "state.json"
NOTHING_TO_RESUME = "there is nothing to resume; check --out, or leave --resume out to start anew"


def newest(folder: Path) -> Path | None:
    """Return the folder of the newest complete state, None if there is none.

    If `state.save` stops between its two renames, it leaves the state under another name.
    """
    names = (folder.name, f".{folder.name}.new", f".{folder.name}.old")
    folders = map(folder.with_name, names)
    return next((place for place in folders if (place / STATE).is_file()), None)


def saved_step(run: Path) -> int | None:
    """Return the step of a run's newest state, None if there is none."""
    if (saved := newest(run / LAST)) is None:
        return None
    return int(orjson.loads((saved / STATE).read_bytes())["progress"]["step"])
