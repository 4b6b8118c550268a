"""The folder into which `score` writes, and which of its options go together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unwritable
from training.evaluation.evaluation import Items
from training.models.encoder_location import find_encoder

_HELP = (
    "For a run of OAK: the metadata items that a test row attends to, those that it is predicted,"
    " as when served, or all that the data link it to; `linked` needs `--out`."
)
ItemsOption = Annotated[Items, Parameter(help=_HELP)]


def target_of(
    run: Path | None,
    encoder: str | None,
    out: Path | None,
    *,
    untrained: bool,
    head_share: float | None,
    items: Items = "predicted",
) -> Path:
    """The folder of the results, which can be written.

    Raises `InvalidData` where it cannot be written, and `InvalidInput` for options that do not go
    together, and for an encoder that is none.
    """
    if items != "predicted" and (untrained or head_share is not None):
        raise InvalidInput(f"--items {items} goes neither with --untrained nor with --head-share")
    if items != "predicted":
        return _beside_run(run, encoder, out, option="--items linked")
    if head_share is not None:
        return _of_share(run, encoder, out, head_share)
    target = run if run is not None else out
    if (run is None) == (encoder is None) or (encoder is None) != (out is None) or target is None:
        raise InvalidInput("give either --run, or --encoder and --out")
    if untrained and run is None:
        raise InvalidInput("--untrained goes with --run: an encoder by itself is not trained")
    refuse_unwritable(target)
    if encoder is not None:
        find_encoder(encoder)
    return target


def _of_share(run: Path | None, encoder: str | None, out: Path | None, head_share: float) -> Path:
    if not 0.0 <= head_share <= 1.0:
        raise InvalidInput(f"--head-share must lie in 0..1, not {head_share:g}")
    return _beside_run(run, encoder, out, option="--head-share")


def _beside_run(run: Path | None, encoder: str | None, out: Path | None, *, option: str) -> Path:
    """The folder for results of a run that are not those of its `score`."""
    if run is None or encoder is not None or out is None:
        raise InvalidInput(f"{option} goes with --run and --out")
    if out.resolve() == run.resolve():
        raise InvalidInput("--out must be another folder than --run, whose results stay")
    refuse_unwritable(out)
    return out
