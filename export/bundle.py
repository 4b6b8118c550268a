"""Encoder and data set -> bundle: trace, quantize, hold against torch, encode, index, write."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from scipy.sparse import csr_matrix

from export.encoding import encode_resumably
from export.onnx import trace
from export.parity import Parity, Tolerance, draw_sample, measure
from export.quantize import QUANTIZATIONS, quantize
from service.core.bundle import BundleContent, write_bundle
from service.core.durable import refuse_existing
from service.core.encoder import OnnxEncoder
from service.core.errors import InvalidInput
from service.core.index import IndexParameters
from service.core.manifest import EncoderFacts, PredictorFacts
from service.core.types import Floats, Halves, Role
from training.datasets.dataset import Dataset
from training.encoder import TorchEncoder
from training.reduction import budget_rows, check_method, reduce
from training.reduction.memory import Memory


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What shapes a bundle beside encoder and data.

    The memory keeps the share `instances` of the instance keys, by the method `reduction`; all
    labels stay.
    """

    quantization: str = "int8"
    index: IndexParameters = field(default_factory=IndexParameters)
    predictor: PredictorFacts = field(
        default_factory=lambda: PredictorFacts(tau=0.04, depth=200, memorization=0.5)
    )
    instances: float = 1.0
    reduction: str = "random"
    tolerance: Tolerance = field(default_factory=Tolerance)
    parity_sample: int = 2000
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)


def export_bundle(
    encoder: TorchEncoder,
    dataset: Dataset,
    target: Path,
    *,
    options: ExportOptions,
    console: Console,
) -> Parity:
    """Write the bundle at `target` and return how close its encoder is to torch.

    Work that an interruption should not lose is kept beside the target until the bundle stands.
    Raises `ParityError` beyond the tolerance and `InvalidInput` when the target exists or the
    options are out of range.
    """
    check_method(options.reduction)
    budget_rows(options.instances, total=len(dataset.train))
    refuse_existing(target)
    if not dataset.labels.texts:
        raise InvalidInput(f"data set {dataset.name} has no labels")
    work = target.absolute().with_name(f".{target.name}.encoding")
    work.mkdir(parents=True, exist_ok=True)
    with _progress(console) as progress:
        fp32, exported = _graphs(encoder, work, options, progress)
        step = progress.add_task("compare with torch", total=None)
        parity = measure(
            draw_sample(dataset, size=options.parity_sample),
            reference=encoder,
            fp32=fp32,
            exported=exported,
            threads=options.threads,
        )
        parity.check(options.tolerance)
        progress.update(step, total=1, completed=1)
        keys = _encode(encoder, exported, dataset, work, options, progress)
        content = _content(encoder, exported, dataset, keys, work, options, parity, target.name)
        step = progress.add_task("build the index", total=len(content.keys))
        write_bundle(content, target, progress=_completed(progress, step))
    shutil.rmtree(work)
    return parity


def _graphs(
    encoder: TorchEncoder, work: Path, options: ExportOptions, progress: Progress
) -> tuple[OnnxEncoder, OnnxEncoder]:
    """The fp32 and the exported graph, each with the tokenizer, in folders below `work`."""
    step = progress.add_task("trace and quantize", total=2)
    loaded: list[OnnxEncoder] = []
    for folder, name in ((work / "fp32", "none"), (work / "exported", options.quantization)):
        folder.mkdir(exist_ok=True)
        encoder.tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
        if name == "none" and not loaded:
            trace(encoder, folder / "encoder.onnx")
        else:
            quantize(work / "fp32/encoder.onnx", folder / "encoder.onnx", QUANTIZATIONS[name])
        loaded.append(OnnxEncoder(folder, _facts(encoder, folder, name)))
        progress.advance(step)
    return loaded[0], loaded[1]


def _facts(encoder: TorchEncoder, folder: Path, quantization: str) -> EncoderFacts:
    return EncoderFacts(
        name=encoder.name,
        fingerprint=_fingerprint(encoder, folder),
        dimension=encoder.dimension,
        max_tokens=encoder.max_tokens,
        quantization=quantization,
        batch_invariant=QUANTIZATIONS[quantization].batch_invariant,
        query_prompt=encoder.prompts[Role.QUERY],
        label_prompt=encoder.prompts[Role.LABEL],
    )


def _fingerprint(encoder: TorchEncoder, folder: Path) -> str:
    digest = hashlib.sha256(f"{encoder.max_tokens}".encode())
    for prompt in encoder.prompts.values():
        digest.update(prompt.encode() + b"\0")
    for name in ("encoder.onnx", "tokenizer.json"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _encode(
    encoder: TorchEncoder,
    exported: OnnxEncoder,
    dataset: Dataset,
    work: Path,
    options: ExportOptions,
    progress: Progress,
) -> Halves:
    """K = [X; Z] in fp16, [N + L, d].

    Where both roles have the same prompt, a text has one vector whichever it stands in, and the
    texts that are instance and label at once are encoded once.
    """
    instances, labels = dataset.train.instances.texts, dataset.labels.texts
    blocks = [("instances", Role.QUERY, instances), ("labels", Role.LABEL, labels)]
    if encoder.prompts[Role.QUERY] == encoder.prompts[Role.LABEL]:
        blocks = [("texts", Role.LABEL, (*instances, *labels))]
    keys = []
    for what, role, texts in blocks:
        step = progress.add_task(f"encode {what}", total=len(set(texts)))
        keys.append(
            encode_resumably(
                exported,
                texts,
                role=role,
                work=work / what,
                threads=options.threads,
                progress=_completed(progress, step),
            )
        )
    return np.concatenate(keys)


def _content(
    encoder: TorchEncoder,
    exported: OnnxEncoder,
    dataset: Dataset,
    keys: Halves,
    work: Path,
    options: ExportOptions,
    parity: Parity,
    name: str,
) -> BundleContent:
    instances, votes, texts = _instances(keys, dataset, options)
    return BundleContent(
        name=name,
        dataset=dataset.name,
        encoder=_facts(encoder, work / "exported", options.quantization),
        encoder_onnx=work / "exported/encoder.onnx",
        tokenizer_json=work / "exported/tokenizer.json",
        keys=np.concatenate([instances, keys[len(dataset.train) :]]),
        indptr=votes.indptr,
        indices=votes.indices,
        instance_texts=texts,
        label_ids=dataset.labels.uids,
        label_texts=dataset.labels.texts,
        predictor=options.predictor,
        index=options.index,
        metrics=parity.as_metrics(),
    )


def _instances(
    keys: Halves, dataset: Dataset, options: ExportOptions
) -> tuple[Halves, csr_matrix, Sequence[str]]:
    """The instance block, reduced to its share: keys [m, d], votes [m, L] and texts [m].

    Where a method merges rows, a key is the mean of several texts'; the one that lies nearest to it
    stands for them in the bundle, and is what an answer's evidence shows.
    """
    count, votes, texts = len(dataset.train), dataset.train.labels_of, dataset.train.instances.texts
    if options.instances == 1.0:
        return keys[:count], votes, texts
    vectors: Floats = keys.astype(np.float32)
    memory = Memory(instances=vectors[:count], labels_of=votes, labels=vectors[count:])
    [reduced] = reduce(memory, method=options.reduction, shares=[options.instances]).values()
    return (
        reduced.instances.astype(np.float16),
        reduced.labels_of,
        [texts[row] for row in reduced.texts_of.tolist()],
    )


def _completed(progress: Progress, step: TaskID) -> Callable[[int], None]:
    return lambda done: progress.update(step, completed=done)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
    )
