"""From the name of a checkpoint to an exported encoder: load it with torch, then export it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from export.exported_encoder import open_exported
from export.extras import from_extra
from service.core.errors import InvalidInput

if TYPE_CHECKING:
    from export.exported_encoder import ExportedEncoder
    from training.datasets.dataset import Dataset

DEFAULT_QUANTIZATION = "static-int8"
DEFAULT_MAX_DROP = 2.0


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """How a checkpoint is exported; None is the default of each.

    Attributes
    ----------
    quantize
        static-int8: 8 bits, calibrated on the data set, the same vector in any batch. int8: 8 bits
        with scales of each batch, encoded one by one. none: fp32, which a GPU needs. Default:
        static-int8.
    max_tokens
        Number of tokens after which a text is cut. Default: the encoder's own limit.
    query_prompt
        Text that is put before each query. Default: the encoder's own.
    label_prompt
        Text that is put before each label. Default: the encoder's own.
    max_drop
        How many percentage points of P@1 quantization may cost on the sample. Default: 2.
    query_encoder
        A student of `python -m training distill`, as --encoder names one: a smaller encoder of the
        same vectors, for queries only. Keys and posted texts stay those of --encoder.
    max_query_drop
        How many percentage points of P@1 the query encoder may cost on the sample. Default: 2.
    """

    quantize: Literal["static-int8", "int8", "none"] | None = None
    max_tokens: int | None = None
    query_prompt: str | None = None
    label_prompt: str | None = None
    max_drop: float | None = None
    query_encoder: str | None = None
    max_query_drop: float | None = None

    def refuse_given(self) -> None:
        """Raise `InvalidInput` for the first given option: an exported encoder has fixed them."""
        for name, value in asdict(self).items():
            if value is not None:
                raise InvalidInput(
                    f"{name.replace('_', '-')}: the encoder is exported already; give this option"
                    " to `python -m export encoder` with its checkpoint"
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
    from training.models.encoder_location import locate
    from training.models.torch_encoder import load_encoder

    folder = Path(locate(checkpoint))
    origin = read_origin(folder)
    load = partial(load_encoder, max_tokens=options.max_tokens, query_prompt=options.query_prompt)
    encoder_options = EncoderOptions(
        quantization=options.quantize or DEFAULT_QUANTIZATION,
        tolerance=Tolerance(
            precision=_or_default(options.max_drop),
            query_precision=_or_default(options.max_query_drop),
        ),
        predictor=predictor_defaults(folder),
        origin=origin,
        checkpoint=folder,
        name=name or (origin.recipe if origin is not None else None),
        query_encoder=load(options.query_encoder) if options.query_encoder else None,
    )
    encoder = load(checkpoint, label_prompt=options.label_prompt)
    return export_encoder(encoder, dataset, target, options=encoder_options, console=console)


def export_query_tower(
    folder: Path, dataset: Dataset, target: Path, *, options: CheckpointOptions, console: Console
) -> ExportedEncoder:
    """Copy an exported encoder to `target` and add the graph of a query encoder.

    Token limit, prompt and quantization are those of the exported encoder. Raises `InvalidInput`
    without a query encoder or with an option that the export has fixed, `MissingExtra` without
    torch, and what `add_query_encoder` raises.
    """
    if options.query_encoder is None:
        raise InvalidInput(f"{folder} is exported already; --query-encoder adds one to it")
    replace(options, query_encoder=None, max_query_drop=None).refuse_given()
    with from_extra("export"):
        from export.encoder.export import EncoderOptions
        from export.encoder.parity import Tolerance
        from export.encoder.query_tower import add_query_encoder
    from training.models.torch_encoder import load_encoder

    exported = open_exported(folder)
    facts = exported.description.encoder
    student = load_encoder(
        options.query_encoder, max_tokens=facts.max_tokens, query_prompt=facts.query_prompt
    )
    encoder_options = EncoderOptions(
        quantization=facts.quantization,
        tolerance=Tolerance(query_precision=_or_default(options.max_query_drop)),
    )
    return add_query_encoder(
        exported, student, dataset, target, options=encoder_options, console=console
    )


def _or_default(drop: float | None) -> float:
    return DEFAULT_MAX_DROP if drop is None else drop
