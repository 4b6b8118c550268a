"""What the results of a run have and those of an encoder lack: its time, history and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from training.evaluation.results import Check


def facts_of_run(run: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Results` that only a run has; `facts` are those of its `run.json`."""
    return {
        "held_out_rows": facts["settings"]["validation"]["rows"],
        "training_seconds": facts["progress"]["seconds"],
        "history": tuple(history_of(run)),
        "settings": _without_places(facts.get("settings", {})),
        "hardware": facts.get("hardware", {}),
    }


def _without_places(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with names in place of the folders of other runs: results are read elsewhere."""
    shown = dict(settings)
    for table, key in (("guidance", "oracle"), ("soft_labels", "teacher")):
        place = settings.get(table, {}).get(key)
        if place is not None:
            shown[table] = {**settings[table], key: Path(place).name}
    return shown


def oracle_of(settings: dict[str, Any]) -> str | None:
    """The name of the run that guided a run with these settings; None where none did."""
    oracle = settings.get("guidance", {}).get("oracle")
    return None if oracle is None else Path(oracle).name


def history_of(run: Path) -> list[Check]:
    """The checks on held-out rows during training, one a step and lambda, from metrics.jsonl."""
    history: dict[tuple[int, float], Check] = {}
    for line in (run / "metrics.jsonl").read_bytes().splitlines():
        entry = orjson.loads(line)
        if entry["kind"] != "validation":
            continue
        values: dict[str, float] = {}
        for key, value in entry.items():
            metric, at, memorization = key.partition(" at ")
            if at:
                values[metric], best = value, float(memorization)
        history[entry["step"], best] = Check(
            step=entry["step"], seconds=entry["seconds"], memorization=best, metrics=values
        )
    return list(history.values())
