"""From a loaded checkpoint to an exported encoder: trace, quantize, compare, describe."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from export import exported_encoder
from export.encoder import model_card
from export.encoder.irene import export_novel
from export.encoder.onnx import trace
from export.encoder.parity import Parity, Tolerance, draw_sample, measure
from export.encoder.quantize import QUANTIZATIONS, quantize
from export.exported_encoder import (
    GRAPH,
    TOKENIZER,
    ExportedEncoder,
    LabelFacts,
    Origin,
    PredictorDefaults,
)
from export.progress import progress_bars
from service.core.bundle.manifest import EncoderFacts
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import InvalidInput
from service.core.files.atomic import new_folder, refuse_existing
from service.core.types import Role
from training.checkpoints.choices import UNCHOSEN
from training.checkpoints.label_keys import LABEL_KEYS, read_label_keys
from training.datasets.dataset import Dataset
from training.hardware import versions
from training.models.torch_encoder import TorchEncoder

LIBRARIES = ("torch", "transformers", "sentence-transformers", "onnx", "onnxruntime")


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Choices for an exported encoder that its weights do not make.

    `checkpoint` is the checkpoint's folder, for label keys and IRENE's files; None exports neither.
    `name` is the encoder's name in the manifest and in `/info`, by default the checkpoint's.
    """

    quantization: str = "int8"
    tolerance: Tolerance = field(default_factory=Tolerance)
    parity_sample: int = 2000
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    predictor: PredictorDefaults = field(default_factory=lambda: PredictorDefaults.of(UNCHOSEN))
    origin: Origin | None = None
    checkpoint: Path | None = None
    name: str | None = None


def export_encoder(
    encoder: TorchEncoder,
    dataset: Dataset,
    target: Path,
    *,
    options: EncoderOptions,
    console: Console,
) -> ExportedEncoder:
    """Write the exported encoder's folder at `target`.

    Torch and the exported graph are compared on a sample of the data set. Raises `ParityError` if
    they differ by more than the tolerance, and `InvalidInput` if the target exists or the data set
    gives no sample. In both cases nothing is written.
    """
    refuse_existing(target)
    if not dataset.labels.texts:
        raise InvalidInput(f"data set {dataset.name} has no labels")
    with (
        tempfile.TemporaryDirectory() as scratch,
        new_folder(target) as folder,
        progress_bars(console) as progress,
    ):
        fp32, quantized = _graphs(encoder, Path(scratch), folder, options, progress)
        step = progress.add_task("compare with torch", total=None)
        parity = measure(
            draw_sample(dataset, size=options.parity_sample),
            reference=encoder,
            fp32=fp32,
            exported=quantized,
            threads=options.threads,
        )
        parity.check(options.tolerance)
        progress.update(step, total=1, completed=1)
        labels = _export_label_files(options.checkpoint, dataset, folder)
        _describe(encoder, folder, options, parity, labels)
    return exported_encoder.open_exported(target)


def _graphs(
    encoder: TorchEncoder, scratch: Path, folder: Path, options: EncoderOptions, progress: Progress
) -> tuple[OnnxEncoder, OnnxEncoder]:
    """Write and open the fp32 graph in `scratch` and the exported graph in `folder`.

    The tokenizer is written next to each.
    """
    step = progress.add_task("trace and quantize", total=2)
    trace(encoder, scratch / GRAPH)
    encoder.tokenizer.backend_tokenizer.save(str(scratch / TOKENIZER))
    progress.advance(step)
    quantize(scratch / GRAPH, folder / GRAPH, QUANTIZATIONS[options.quantization])
    shutil.copyfile(scratch / TOKENIZER, folder / TOKENIZER)
    progress.advance(step)
    return (
        OnnxEncoder(scratch, facts(encoder, scratch, quantization="none")),
        OnnxEncoder(folder, facts(encoder, folder, quantization=options.quantization)),
    )


def _export_label_files(
    checkpoint: Path | None, dataset: Dataset, folder: Path
) -> LabelFacts | None:
    """Write the label keys and IRENE's files of a checkpoint; return None if it has neither."""
    if checkpoint is None:
        return None
    keys = read_label_keys(checkpoint, labels=len(dataset.labels))
    if keys is not None:
        np.save(folder / LABEL_KEYS, keys.astype(np.float16))
    novel = export_novel(checkpoint, dataset, folder)
    if keys is None and novel is None:
        return None
    return LabelFacts(
        digest=exported_encoder.digest_of(dataset), keys=keys is not None, novel=novel
    )


def _describe(
    encoder: TorchEncoder,
    folder: Path,
    options: EncoderOptions,
    parity: Parity,
    labels: LabelFacts | None,
) -> None:
    description = exported_encoder.describe(
        folder,
        encoder=facts(encoder, folder, quantization=options.quantization, name=options.name),
        predictor=options.predictor,
        parity=parity.as_metrics(),
        libraries=versions(*LIBRARIES),
        origin=options.origin,
        labels=labels,
    )
    model_card.write(description, folder)


def facts(
    encoder: TorchEncoder, folder: Path, *, quantization: str, name: str | None = None
) -> EncoderFacts:
    """Return the manifest's facts about the graph and the tokenizer in `folder`."""
    return EncoderFacts(
        name=name or encoder.name,
        fingerprint=fingerprint(encoder, folder),
        dimension=encoder.dimension,
        max_tokens=encoder.max_tokens,
        quantization=quantization,
        batch_invariant=QUANTIZATIONS[quantization].batch_invariant,
        query_prompt=encoder.prompts[Role.QUERY],
        label_prompt=encoder.prompts[Role.LABEL],
    )


def fingerprint(encoder: TorchEncoder, folder: Path) -> str:
    """Return the SHA-256 over everything that a vector depends on.

    These are the token limit, both prompts, the graph and the tokenizer.
    """
    digest = hashlib.sha256(f"{encoder.max_tokens}".encode())
    for prompt in encoder.prompts.values():
        digest.update(prompt.encode() + b"\0")
    for name in (GRAPH, TOKENIZER):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()
