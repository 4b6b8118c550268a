"""`run.json`, the facts of a finished run, and the saved state of one that goes on.

The facts are recipe, data set, choices and hardware. `export` reads them too, without torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from service.core.config import parse
from service.core.errors import InvalidData, InvalidInput
from training.datasets.metadata_texts import MetadataSettings
from training.documents import write_json

RUN = "run.json"
BEST = "best"  # the folder of the best checkpoint, in the run's folder
LAST = "last"  # the folder of the state that --resume reads, in the run's folder
STATE = "state.json"
NOTHING_TO_RESUME = "there is nothing to resume; check --out, or leave --resume out to start anew"
DATA_DIGEST = "data_digest"  # SHA-256 of the texts; it tells data sets of the same name apart


def write_run(run: Path, facts: dict[str, Any]) -> None:
    """Write a run's facts into its folder."""
    write_json(run / RUN, facts)


def read_run(run: Path) -> dict[str, Any]:
    """Read a run's facts; raises `InvalidData` naming the file."""
    path = run / RUN
    try:
        facts: dict[str, Any] = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidData(path, "is missing: the run has not finished") from error
    except orjson.JSONDecodeError as error:
        raise InvalidData(path, f"is not what `train` writes: {error}") from error
    return facts


def read_run_on(run: Path, dataset: str) -> dict[str, Any]:
    """Read a run's facts; raises `InvalidData`, or `InvalidInput` if it trained on other data."""
    facts = read_run(run)
    if facts["dataset"] != dataset:
        raise InvalidInput(f"{run} was trained on {facts['dataset']!r}, not on {dataset!r}")
    return facts


def metadata_of_run(facts: dict[str, Any], run: Path) -> MetadataSettings:
    """Return the metadata settings of a run; raises `InvalidConfig`."""
    table = facts.get("settings", {}).get("metadata", {})
    return parse(MetadataSettings, table, source=str(run / RUN))


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
