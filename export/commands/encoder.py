"""`keymatch export encoder`: a checkpoint becomes an exported encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from export.commands.options import FLAT, CheckpointOptions, export_checkpoint
from service.command_line import open_console
from service.core.files.atomic import refuse_existing, refuse_unwritable


def encoder(
    *,
    encoder: str,
    data: Path,
    out: Path,
    name: str | None = None,
    checkpoint: Annotated[CheckpointOptions, FLAT] = CheckpointOptions(),  # noqa: B008 (frozen)
) -> None:
    """Convert a checkpoint to an ONNX graph, quantize it, and compare it with torch.

    The result is a folder that `keymatch export bundle` reads without torch. A checkpoint from a
    training run (RUN/best) brings the lambda, b and tau that were chosen for it. Its model card
    says how it was trained, and its quality once `keymatch score` has measured it.

    More: training/README.md, section Export

    Parameters
    ----------
    encoder
        A sentence-transformers or Hugging Face folder, a hub name, or package:NAME for an
        installed package that contains such a folder.
    data
        The data set; queries and labels of its test rows are the sample for the comparison.
    out
        The folder to write; it must not exist yet.
    name
        The encoder's name in its model card and in the service. Default: the recipe of the
        training run, otherwise the value of --encoder.
    """
    refuse_existing(out)
    refuse_unwritable(out)
    from training.datasets import lf_xmc
    from training.models.encoder_location import find_encoder

    find_encoder(encoder)
    console, dataset = open_console(), lf_xmc.read(data)
    exported = export_checkpoint(
        encoder, dataset, out, options=checkpoint, name=name, console=console
    )
    size, parity = exported.graph.stat().st_size / 1e6, exported.description.parity
    console.print(
        f"{out}: {size:.1f} MB; {exported.agreement}, P@1 on the parity sample"
        f" {parity['parity.sample_P@1']:.2f} (torch {parity['parity.sample_P@1_torch']:.2f})",
        soft_wrap=True,
    )
