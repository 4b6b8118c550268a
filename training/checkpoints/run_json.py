"""`run.json`, the facts of a finished run: recipe, data set, choices, hardware.

`export` reads it too, without torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from service.core.config import parse
from service.core.errors import InvalidData, InvalidInput
from service.core.files.atomic import write_file
from training.datasets.metadata_texts import MetadataSettings

RUN = "run.json"
BEST = "best"  # the folder of the best checkpoint, in the run's folder
DATA_DIGEST = "data_digest"  # SHA-256 of the texts; it tells data sets of the same name apart


def write_run(run: Path, facts: dict[str, Any]) -> None:
    """Write a run's facts into its folder."""
    write_file(run / RUN, orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")


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
    """Return the metadata settings of a run; raises `InvalidConfig`.

    In runs of older versions, which knew no metadata, nothing is appended to texts.
    """
    table = facts.get("settings", {}).get("metadata", {})
    return parse(MetadataSettings, table, source=str(run / RUN))
