"""Where a checkpoint comes from, and how it wants to be predicted with, read from its folders.

A run's folder holds `best/` (the checkpoint), `run.json` and, once it was scored, `results.json`.
"""

from __future__ import annotations

from pathlib import Path

from export.exported_encoder import Origin, PredictorDefaults
from service.core.errors import InvalidData
from training.checkpoints.choices import UNCHOSEN, read_choices
from training.checkpoints.run_json import RUN, read_run
from training.evaluation import results


def predictor_defaults(checkpoint: Path) -> PredictorDefaults:
    """The settings that `train` chose on held-out rows; defaults for any other checkpoint."""
    return PredictorDefaults.of(read_choices(checkpoint) or UNCHOSEN)


def read_origin(checkpoint: Path) -> Origin | None:
    """The run that made a checkpoint, None for one of another origin; raises `InvalidData`."""
    run = checkpoint.resolve().parent
    if not (run / RUN).is_file():
        return None
    facts = read_run(run)
    try:
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
    except (KeyError, TypeError) as error:
        raise InvalidData(run / RUN, f"is not what `train` writes: {error!r}") from error


def _metrics(run: Path) -> dict[str, float]:
    """The test rows' figures at what was chosen, where the run was scored."""
    if not (run / results.FILE).is_file():
        return {}
    found = results.read(run).results
    return next((dict(result.metrics) for result in found if result.chosen), {})
