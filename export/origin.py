"""Where a checkpoint comes from, and how it wants to be predicted with, read from its folders.

A run's folder holds `best/` (the checkpoint), `run.json` and, once it was scored, `results.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from export.exported import Origin, PredictorDefaults
from service.core.errors import InvalidData
from training import results
from training.choices import read_choices, read_learned

DEFAULTS = PredictorDefaults(tau=0.04, depth=200, memorization=0.5)
RUN = "run.json"


def predictor_defaults(checkpoint: Path) -> PredictorDefaults:
    """What `train` chose on held-out rows and `adapt` learned; else the paper's middle way."""
    learned, choices = read_learned(checkpoint), read_choices(checkpoint)
    if choices is None:
        return PredictorDefaults(
            tau=DEFAULTS.tau,
            depth=DEFAULTS.depth,
            memorization=DEFAULTS.memorization,
            learned=learned,
        )
    return PredictorDefaults(
        tau=choices.tau, depth=choices.depth, memorization=choices.memorization, learned=learned
    )


def read_origin(checkpoint: Path) -> Origin | None:
    """The run that made a checkpoint, None for one of another origin; raises `InvalidData`."""
    run = checkpoint.resolve().parent
    path = run / RUN
    if not path.is_file():
        return None
    try:
        facts: dict[str, Any] = orjson.loads(path.read_bytes())
        settings, progress = facts["settings"], facts["progress"]
        return Origin(
            recipe=Path(facts["recipe"]).name,
            base=settings["encoder"]["name"],
            dataset=facts["dataset"],
            seed=settings["seed"],
            held_out_rows=settings["validation"]["rows"],
            steps=progress["best_step"],
            seconds=progress["seconds"],
            tokens=progress["tokens"],
            hardware=facts["hardware"],
            mixing=progress.get("best_mixing", 1.0),
            metrics=_metrics(run),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidData(path, f"is not what `train` writes: {error!r}") from error


def _metrics(run: Path) -> dict[str, float]:
    """The test rows' figures at what was chosen, where the run was scored."""
    if not (run / results.FILE).is_file():
        return {}
    found = results.read(run).results
    return next((dict(result.metrics) for result in found if result.chosen), {})
