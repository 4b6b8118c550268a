"""From a loaded checkpoint to an exported encoder: trace, quantize, compare, describe."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import numpy as np
from rich.console import Console
from tokenizers import Tokenizer

from export.encoder.fusion import export_items
from export.encoder.irene import export_novel
from export.encoder.onnx import trace
from export.encoder.onnx_graph import require_one_file
from export.encoder.parity import Parity, Tolerance, draw_sample, measure
from export.encoder.quantize import BATCH_INVARIANT, quantize
from export.exported_encoder import (
    CARD,
    Description,
    ExportedEncoder,
    LabelFacts,
    Origin,
    digest_of,
    open_exported,
    predictor_defaults,
    write_description,
)
from service.core.bundle.bundle import ENCODER, TOKENIZER
from service.core.bundle.manifest import EXACT_QUANTIZATION, EncoderFacts
from service.core.encoding.encoder import Encoder, OnnxEncoder
from service.core.encoding.onnx_session import Tokens
from service.core.errors import InvalidInput
from service.core.files.atomic import new_folder, refuse_existing
from service.core.files.folder_facts import file_facts
from service.core.types import Role
from training.checkpoints import reranker_folder, trained_texts
from training.checkpoints.label_keys import LABEL_KEYS, read_label_keys
from training.checkpoints.reranker_folder import weights_digest
from training.datasets.dataset import Dataset
from training.hardware import versions
from training.models.torch_encoder import TorchEncoder
from training.progress import Report, stages

LIBRARIES = ("torch", "transformers", "sentence-transformers", "onnx", "onnxruntime")
CALIBRATION_TEXTS = 2048  # labels, and as many queries; `quantize` stops at a token limit
SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100")  # in the model card


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Settings for an exported encoder that do not follow from its weights.

    `checkpoint` is the folder with the checkpoint's inference settings and other files; None
    exports none of them. `name` is the encoder's name in the manifest and in `/info`, by default
    the checkpoint's.
    """

    quantization: str = "static-int8"
    tolerance: Tolerance = field(default_factory=Tolerance)
    parity_sample: int = 2000
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
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
    they differ by more than the tolerance, and `InvalidInput` if the target exists or no sample can
    be drawn. Nothing is written on an error.
    """
    refuse_existing(target)
    if not dataset.labels.texts:
        raise InvalidInput(f"data set {dataset.name} has no labels")
    with new_folder(target) as folder, stages(console) as report:
        checkpoint, labels, items = options.checkpoint, None, None
        if checkpoint is not None:  # first, since it refuses files that do not fit the data set
            labels = _export_label_files(checkpoint, dataset, folder)
            items = export_items(checkpoint, dataset, folder, dimension=encoder.dimension)
            reranker_folder.copy(checkpoint, folder)
            if (trained := trained_texts.read(checkpoint)) is not None:
                trained_texts.write(trained, folder)
        save_tokenizer(encoder, folder / TOKENIZER)
        parity = _export_graph(encoder, dataset, folder, options, report)
        description = Description(
            encoder=facts(encoder, folder, quantization=options.quantization, name=options.name),
            predictor=predictor_defaults(checkpoint),
            parity=parity.as_metrics(),
            libraries=versions(*LIBRARIES),
            files=file_facts(folder),
            origin=options.origin,
            labels=labels,
            items=items,
            weights=None if checkpoint is None else weights_digest(checkpoint),
        )
        write_description(description, folder)
        (folder / CARD).write_text(model_card(description), encoding="utf-8")
    return open_exported(target)


def save_tokenizer(encoder: TorchEncoder, path: Path) -> None:
    """Write the tokenizer, including the end at which it cuts long texts."""
    tokenizer = Tokenizer.from_str(encoder.tokenizer.backend_tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.enable_truncation(encoder.max_tokens, direction=encoder.tokenizer.truncation_side)
    tokenizer.save(str(path))


def _export_graph(
    encoder: TorchEncoder, dataset: Dataset, folder: Path, options: EncoderOptions, report: Report
) -> Parity:
    """Trace and quantize an encoder to its graph, and compare its vectors with torch's.

    Raises `ParityError`, and `InvalidInput` for a graph that is too large, before it is compared.
    """
    # The result must be one file. Static int8 shrinks the graph to a quarter of its size.
    exact = options.quantization == EXACT_QUANTIZATION
    require_one_file(encoder.size // 4 if exact else encoder.size)
    step = f"trace and quantize {ENCODER}"
    report(step, 0, 2)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        trace(encoder, scratch / ENCODER)
        shutil.copyfile(folder / TOKENIZER, scratch / TOKENIZER)
        report(step, 1, 2)
        fp32 = OnnxEncoder(scratch, facts(encoder, scratch, quantization="none"))
        quantize(
            scratch / ENCODER,
            folder / ENCODER,
            options.quantization,
            calibration=calibration_texts(fp32, dataset),
        )
        report(step, 2, 2)
        exported = OnnxEncoder(folder, facts(encoder, folder, quantization=options.quantization))
        report("compare with torch", 0, 1)
        parity = measure(
            draw_sample(dataset, size=options.parity_sample),
            reference=encoder,
            fp32=fp32,
            exported=exported,
            threads=options.threads,
        )
    parity.check(options.tolerance)
    report("compare with torch", 1, 1)
    return parity


def calibration_texts(encoder: Encoder, dataset: Dataset, *, seed: int = 0) -> Tokens:
    """Return token ids of randomly drawn labels and training queries, alternating."""
    rng = np.random.default_rng(seed)
    drawn = []
    for role, texts in (
        (Role.LABEL, dataset.labels.texts),
        (Role.QUERY, dataset.train.instances.texts),
    ):
        rows = rng.permutation(len(texts))[:CALIBRATION_TEXTS].tolist()
        drawn.append(encoder.tokenize([texts[row] for row in rows], role=role))
    return [ids for pair in zip_longest(*drawn) for ids in pair if ids is not None]


def _export_label_files(checkpoint: Path, dataset: Dataset, folder: Path) -> LabelFacts | None:
    """Write the label keys and IRENE's files of a checkpoint; return None if it has neither."""
    keys = read_label_keys(checkpoint, labels=len(dataset.labels))
    if keys is not None:
        np.save(folder / LABEL_KEYS, keys.astype(np.float16))
    novel = export_novel(checkpoint, dataset, folder)
    if keys is None and novel is None:
        return None
    return LabelFacts(digest=digest_of(dataset), keys=keys is not None, novel=novel)


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
        batch_invariant=BATCH_INVARIANT[quantization],
        query_prompt=encoder.prompts[Role.QUERY],
        label_prompt=encoder.prompts[Role.LABEL],
    )


def fingerprint(encoder: TorchEncoder, folder: Path) -> str:
    """Return the SHA-256 of everything that determines a vector.

    These are the token limit, both prompts, the graph and the tokenizer.
    """
    digest = hashlib.sha256(f"{encoder.max_tokens}".encode())
    for prompt in encoder.prompts.values():
        digest.update(prompt.encode() + b"\0")
    for name in (ENCODER, TOKENIZER):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def model_card(description: Description) -> str:
    """Return the encoder's README.md."""
    facts, predictor = description.encoder, description.predictor
    size = description.files["encoder.onnx"].bytes / 1e6
    relevance = "" if predictor.relevance is None else f", relevance {predictor.relevance}"
    lines = [
        f"# {facts.name}",
        "",
        "A text encoder for Keymatch: token ids in, unit vectors out; queries and keywords share"
        " one space. `keymatch export bundle --encoder` takes this folder; no torch is needed.",
        "",
        "| | |",
        "|---|---|",
        f"| dimensions | {facts.dimension} |",
        f"| longest text | {facts.max_tokens} tokens |",
        f"| weights | {facts.quantization}, {size:.1f} MB |",
        f"| inference settings | lambda {predictor.memorization:g}, b {predictor.depth},"
        f" tau {predictor.tau:g}{relevance} |",
        f"| fingerprint | `{facts.fingerprint[:16]}` |",
    ]
    if description.origin is not None:
        lines += ["", *_origin(description.origin)]
    lines += ["", "## Agreement with torch", "", *_table(description.parity)]
    versions = ", ".join(f"{name} {version}" for name, version in description.libraries.items())
    return "\n".join([*lines, "", f"Exported with {versions}.", ""])


def _origin(origin: Origin) -> list[str]:
    """Return the section on the training run, with its metrics if it was scored."""
    hardware = origin.hardware
    where = f"{hardware.get('device')}, {hardware.get('cores')} cores"
    mixture = (
        f" The weights are {origin.mixing:g} of the way from the pretrained to the trained ones."
        if origin.mixing != 1.0
        else ""
    )
    lines = [
        "## Training",
        "",
        f"Recipe `{origin.recipe}` on {origin.dataset}, from {origin.base}, seed {origin.seed}:"
        f" {origin.steps:,} steps, {origin.tokens:,} tokens, {origin.seconds:,.0f} s on {where}"
        f" ({hardware.get('precision')}).{mixture}",
        "",
        f"Recipe, checkpoint, lambda and b were chosen on {origin.held_out_rows:,} training rows"
        " that were held out; no test row took part.",
    ]
    shown = {name: origin.metrics[name] for name in SHOWN if name in origin.metrics}
    if shown:
        lines += ["", "## Test rows, in percent (fp32 encoder, exact search)", "", *_table(shown)]
    return lines


def _table(values: Mapping[str, float]) -> list[str]:
    return ["| | |", "|---|---:|", *(f"| {name} | {value:.4g} |" for name, value in values.items())]
