"""From the name of a checkpoint to an exported encoder: load it with torch, then export it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from export.extras import from_extra
from service.core.errors import InvalidInput

if TYPE_CHECKING:
    from export.exported_encoder import ExportedEncoder
    from training.datasets.dataset import Dataset

DEFAULT_QUANTIZATION = "int8"
DEFAULT_MAX_DROP = 2.0


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """How a checkpoint is exported; None is the default of each.

    Attributes
    ----------
    quantize
        int8: dynamic quantization, one scale per channel of the weights. none: fp32. Default: int8.
    max_tokens
        Number of tokens after which a text is cut. Default: the encoder's own limit.
    query_prompt
        Text that is put before each query. Default: the encoder's own.
    label_prompt
        Text that is put before each label. Default: the encoder's own.
    max_drop
        How many percentage points of P@1 quantization may cost on the sample. Default: 2.
    """

    quantize: Literal["int8", "none"] | None = None
    max_tokens: int | None = None
    query_prompt: str | None = None
    label_prompt: str | None = None
    max_drop: float | None = None

    def refuse_given(self) -> None:
        """Raise `InvalidInput` for the first given option: an exported encoder has fixed them."""
        for name, value in asdict(self).items():
            if value is not None:
                raise InvalidInput(
                    f"{name.replace('_', '-')}: the encoder is exported already; give this option"
                    " to `python -m export encoder`"
                )


def export_checkpoint(
    checkpoint: str,
    dataset: Dataset,
    target: Path,
    *,
    options: CheckpointOptions,
    name: str | None = None,
    console: Console,
) -> ExportedEncoder:
    """Load a checkpoint (a folder, a hub name or package:NAME) and export it to `target`.

    `name` defaults to the recipe of the run that trained it, otherwise to `checkpoint`. Raises
    `MissingExtra` without torch, and what `export_encoder` raises.
    """
    with from_extra("export"):
        from export.encoder.export import EncoderOptions, export_encoder
        from export.encoder.parity import Tolerance
        from export.encoder.provenance import predictor_defaults, read_origin
    from training.models.torch_encoder import load_encoder, locate

    folder = Path(locate(checkpoint))
    origin = read_origin(folder)
    max_drop = DEFAULT_MAX_DROP if options.max_drop is None else options.max_drop
    encoder_options = EncoderOptions(
        quantization=options.quantize or DEFAULT_QUANTIZATION,
        tolerance=Tolerance(precision=max_drop),
        predictor=predictor_defaults(folder),
        origin=origin,
        checkpoint=folder,
        name=name or (origin.recipe if origin is not None else None),
    )
    encoder = load_encoder(
        checkpoint,
        max_tokens=options.max_tokens,
        query_prompt=options.query_prompt,
        label_prompt=options.label_prompt,
    )
    return export_encoder(encoder, dataset, target, options=encoder_options, console=console)
