"""The inference settings of a checkpoint and the training run it comes from, read from its files.

A run's folder has `best/` (the checkpoint), `run.json` and, after scoring, `results.json`.
"""

from __future__ import annotations

from pathlib import Path

from export.encoder_json import Origin, PredictorDefaults
from service.core.errors import InvalidData, InvalidInput
from training.checkpoints.choices import UNCHOSEN, read_choices
from training.checkpoints.run_json import RUN, metadata_of_run, read_run
from training.evaluation import results


def predictor_defaults(checkpoint: Path) -> PredictorDefaults:
    """Return the settings that `train` chose on held-out rows, or defaults if it chose none."""
    return PredictorDefaults.of(read_choices(checkpoint) or UNCHOSEN)


def read_origin(checkpoint: Path) -> Origin | None:
    """Return the run that trained a checkpoint, or None if its parent folder is not a run's.

    Raises `InvalidData` for a damaged `run.json`, and `InvalidInput` for an oracle: its texts have
    metadata appended, and the queries of a service have none.
    """
    run = checkpoint.resolve().parent
    if not (run / RUN).is_file():
        return None
    facts = read_run(run)
    appended = metadata_of_run(facts, run).append
    if appended != "none":
        raise InvalidInput(
            f"{run} is an oracle: it was trained with metadata appended (metadata.append ="
            f" {appended!r}), which queries of a service do not have. Train another run with"
            f" --set guidance.oracle={run}, and export that one"
        )
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
    """Return the run's metrics on test rows with the chosen settings, empty if not scored."""
    if not (run / results.FILE).is_file():
        return {}
    scored = results.read(run).results
    return next((dict(result.metrics) for result in scored if result.chosen), {})
