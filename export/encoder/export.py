"""From a loaded checkpoint to an exported encoder: trace, quantize, compare, describe."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import numpy as np
from rich.console import Console
from tokenizers import Tokenizer

from export import encoder_json, exported_encoder
from export.encoder import model_card
from export.encoder.fusion import export_items
from export.encoder.irene import export_novel
from export.encoder.onnx import trace
from export.encoder.parity import (
    Parity,
    Sample,
    Tolerance,
    compare_query_encoder,
    draw_sample,
    measure,
)
from export.encoder.quantize import QUANTIZATIONS, quantize
from export.encoder_json import LabelFacts, Origin, PredictorDefaults
from export.exported_encoder import ExportedEncoder
from export.item_files import ItemMemoryFacts
from service.core.bundle.bundle import ENCODER, QUERY_ENCODER, TOKENIZER
from service.core.bundle.manifest import EncoderFacts
from service.core.encoding.encoder import Encoder, OnnxEncoder
from service.core.encoding.graph_inputs import Tokens
from service.core.errors import InvalidInput
from service.core.files.atomic import new_folder, refuse_existing
from service.core.types import Role
from training.checkpoints import second_ranking
from training.checkpoints.choices import UNCHOSEN
from training.checkpoints.label_keys import LABEL_KEYS, read_label_keys
from training.checkpoints.weights_digest import weights_digest
from training.datasets.dataset import Dataset
from training.hardware import versions
from training.models.torch_encoder import TorchEncoder
from training.progress import Report, stages

LIBRARIES = ("torch", "transformers", "sentence-transformers", "onnx", "onnxruntime")
CALIBRATION_TEXTS = 2048  # of labels, and of queries; `static_int8` uses a part of long ones


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Choices for an exported encoder that its weights do not make.

    `checkpoint` is the checkpoint's folder, for label keys and IRENE's files; None exports neither.
    `name` is the encoder's name in the manifest and in `/info`, by default the checkpoint's.
    `query_encoder` is a smaller encoder of the same vector space that encodes queries when they are
    answered; None: the encoder itself does.
    """

    quantization: str = "static-int8"
    tolerance: Tolerance = field(default_factory=Tolerance)
    parity_sample: int = 2000
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    predictor: PredictorDefaults = field(default_factory=lambda: PredictorDefaults.of(UNCHOSEN))
    origin: Origin | None = None
    checkpoint: Path | None = None
    name: str | None = None
    query_encoder: TorchEncoder | None = None


def export_encoder(
    encoder: TorchEncoder,
    dataset: Dataset,
    target: Path,
    *,
    options: EncoderOptions,
    console: Console,
) -> ExportedEncoder:
    """Write the exported encoder's folder at `target`.

    Torch and the exported graph are compared on a sample of the data set, and so are the query
    encoder and the encoder. Raises `ParityError` if they differ by more than the tolerance, and
    `InvalidInput` if the target exists, the data set gives no sample, or the query encoder does not
    fit the encoder. In all cases nothing is written.
    """
    refuse_existing(target)
    if not dataset.labels.texts:
        raise InvalidInput(f"data set {dataset.name} has no labels")
    with (
        tempfile.TemporaryDirectory() as scratch,
        new_folder(target) as folder,
        stages(console) as report,
    ):
        work = ExportWork(
            dataset=dataset, folder=folder, scratch=Path(scratch), options=options, report=report
        )
        encoder.tokenizer.backend_tokenizer.save(str(folder / TOKENIZER))
        parity, exported = _export_graph(encoder, ENCODER, work)
        metrics = parity.as_metrics()
        if options.query_encoder is not None:
            metrics |= export_query_encoder(options.query_encoder, exported, work)
        labels = _export_label_files(options.checkpoint, dataset, folder)
        items = None
        if options.checkpoint is not None:
            items = export_items(options.checkpoint, dataset, folder, dimension=encoder.dimension)
            second_ranking.copy(options.checkpoint, folder)
        _describe(encoder, folder, options, metrics, labels, items)
    return exported_encoder.open_exported(target)


@dataclass(frozen=True, kw_only=True)
class ExportWork:
    """What every step of an export needs: the new folder, and one for fp32 graphs."""

    dataset: Dataset
    folder: Path
    scratch: Path
    options: EncoderOptions
    report: Report

    @property
    def sample(self) -> Sample:
        return draw_sample(self.dataset, size=self.options.parity_sample)


def _export_graph(
    encoder: TorchEncoder, graph: str, work: ExportWork
) -> tuple[Parity, OnnxEncoder]:
    """Trace and quantize an encoder to the file `graph`, and compare its vectors with torch's.

    Raises `ParityError`.
    """
    options, scratch, folder = work.options, work.scratch, work.folder
    step = f"trace and quantize {graph}"
    work.report(step, 0, 2)
    trace(encoder, scratch / graph)
    shutil.copyfile(folder / TOKENIZER, scratch / TOKENIZER)
    work.report(step, 1, 2)
    unquantized = facts(encoder, scratch, quantization="none", graph=graph)
    fp32 = OnnxEncoder(scratch, unquantized, graph=graph)
    quantize(
        scratch / graph,
        folder / graph,
        QUANTIZATIONS[options.quantization],
        calibration=calibration_texts(fp32, work.dataset),
    )
    work.report(step, 2, 2)
    described = facts(encoder, folder, quantization=options.quantization, graph=graph)
    exported = OnnxEncoder(folder, described, graph=graph)
    work.report("compare with torch", 0, 1)
    parity = measure(
        work.sample, reference=encoder, fp32=fp32, exported=exported, threads=options.threads
    )
    parity.check(options.tolerance)
    work.report("compare with torch", 1, 1)
    return parity, exported


def export_query_encoder(
    encoder: TorchEncoder, key_encoder: OnnxEncoder, work: ExportWork
) -> dict[str, float]:
    """Write the query encoder's graph; return how it compares with torch and with the keys'.

    Raises `InvalidInput` where its vectors cannot be compared with the keys' (other dimensions) or
    its texts are tokenized in another way, and `ParityError`.
    """
    if encoder.dimension != key_encoder.dimension:
        raise InvalidInput(
            f"query encoder {encoder.name} has {encoder.dimension} dimensions, the encoder of the"
            f" keys has {key_encoder.dimension}"
        )
    if vocabulary(encoder.tokenizer.backend_tokenizer) != vocabulary(
        Tokenizer.from_file(str(work.folder / TOKENIZER))
    ):
        raise InvalidInput(
            f"query encoder {encoder.name} has another tokenizer than the encoder of the keys;"
            " both must read the same tokenizer.json, as a student of `training distill` does"
        )
    parity, exported = _export_graph(encoder, QUERY_ENCODER, work)
    compared = compare_query_encoder(
        work.sample, encoder=key_encoder, query_encoder=exported, threads=work.options.threads
    )
    compared.check(work.options.tolerance)
    own = {
        name.replace("parity.", "query_encoder.torch_"): value
        for name, value in parity.as_metrics().items()
    }
    return {**own, **compared.as_metrics()}


def vocabulary(tokenizer: Tokenizer) -> str:
    """Return a tokenizer as text, without its settings for cutting and padding."""
    copied = Tokenizer.from_str(tokenizer.to_str())
    copied.no_truncation()
    copied.no_padding()
    text: str = copied.to_str()
    return text


def calibration_texts(encoder: Encoder, dataset: Dataset, *, seed: int = 0) -> Tokens:
    """Return token ids of labels and training queries in turn, drawn at random."""
    rng = np.random.default_rng(seed)
    drawn = []
    for role, texts in (
        (Role.LABEL, dataset.labels.texts),
        (Role.QUERY, dataset.train.instances.texts),
    ):
        rows = rng.permutation(len(texts))[:CALIBRATION_TEXTS].tolist()
        drawn.append(encoder.tokenize([texts[row] for row in rows], role=role))
    return [ids for pair in zip_longest(*drawn) for ids in pair if ids is not None]


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
    metrics: dict[str, float],
    labels: LabelFacts | None,
    items: ItemMemoryFacts | None,
) -> None:
    queries = options.query_encoder
    description = encoder_json.describe(
        folder,
        encoder=facts(encoder, folder, quantization=options.quantization, name=options.name),
        predictor=options.predictor,
        parity=metrics,
        libraries=versions(*LIBRARIES),
        origin=options.origin,
        labels=labels,
        items=items,
        weights=None if options.checkpoint is None else weights_digest(options.checkpoint),
        query_encoder=None
        if queries is None
        else facts(queries, folder, quantization=options.quantization, graph=QUERY_ENCODER),
    )
    model_card.write(description, folder)


def facts(
    encoder: TorchEncoder,
    folder: Path,
    *,
    quantization: str,
    name: str | None = None,
    graph: str = ENCODER,
) -> EncoderFacts:
    """Return the manifest's facts about a graph and the tokenizer in `folder`."""
    return EncoderFacts(
        name=name or encoder.name,
        fingerprint=fingerprint(encoder, folder, graph=graph),
        dimension=encoder.dimension,
        max_tokens=encoder.max_tokens,
        quantization=quantization,
        batch_invariant=QUANTIZATIONS[quantization].batch_invariant,
        query_prompt=encoder.prompts[Role.QUERY],
        label_prompt=encoder.prompts[Role.LABEL],
    )


def fingerprint(encoder: TorchEncoder, folder: Path, *, graph: str = ENCODER) -> str:
    """Return the SHA-256 over everything that a vector depends on.

    These are the token limit, both prompts, the graph and the tokenizer.
    """
    digest = hashlib.sha256(f"{encoder.max_tokens}".encode())
    for prompt in encoder.prompts.values():
        digest.update(prompt.encode() + b"\0")
    for name in (graph, TOKENIZER):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()
