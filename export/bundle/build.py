"""Exported encoder and data set -> bundle: encode, reduce, index, write. No torch is needed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from scipy.sparse import csr_matrix

from export.bundle.encode import encode_resumably
from export.exported_encoder import ExportedEncoder
from export.progress import completed, progress_bars
from service.core.bundle.bundle import BundleContent, write_bundle
from service.core.bundle.manifest import PredictorFacts
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_existing
from service.core.index.libraries import IndexParameters
from service.core.types import Floats, Halves, Role
from training.datasets.dataset import Dataset
from training.reduction import budget_rows, check_method, reduce
from training.reduction.memory import WholeMemory


@dataclass(frozen=True, kw_only=True)
class BundleOptions:
    """What shapes a bundle beside encoder and data.

    The memory keeps the share `instances` of the instance keys, by the method `reduction`; all
    labels stay.
    """

    predictor: PredictorFacts
    index: IndexParameters = field(default_factory=IndexParameters)
    instances: float = 1.0
    reduction: str = "random"
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)


def check_options(options: BundleOptions, dataset: Dataset, target: Path) -> None:
    """Refuse what cannot become a bundle, before any work; raises `InvalidInput`."""
    check_method(options.reduction)
    budget_rows(options.instances, total=len(dataset.train))
    refuse_existing(target)
    if not dataset.labels.texts:
        raise InvalidInput(f"data set {dataset.name} has no labels")


def work_folder(target: Path) -> Path:
    """Where an interrupted export keeps what it has, beside the target."""
    return target.absolute().with_name(f".{target.name}.encoding")


def export_bundle(
    encoder: ExportedEncoder,
    dataset: Dataset,
    target: Path,
    *,
    options: BundleOptions,
    console: Console,
) -> None:
    """Write the bundle at `target`.

    Work that an interruption should not lose is kept in `work_folder` until the bundle stands.
    Raises `InvalidInput` when the target exists or the options are out of range.
    """
    check_options(options, dataset, target)
    work = work_folder(target)
    work.mkdir(parents=True, exist_ok=True)
    with progress_bars(console) as progress:
        keys = _encode(encoder, dataset, work, options, progress)
        content = _content(encoder, dataset, keys, options, target.name)
        step = progress.add_task("build the index", total=len(content.keys))
        write_bundle(content, target, progress=completed(progress, step))
    shutil.rmtree(work)


def _encode(
    encoder: ExportedEncoder,
    dataset: Dataset,
    work: Path,
    options: BundleOptions,
    progress: Progress,
) -> Halves:
    """K = [X; Z] in fp16, [N + L, d].

    Where both roles have the same prompt, a text has one vector whichever it stands in, and the
    texts that are instance and label at once are encoded once.
    """
    instances, labels = dataset.train.instances.texts, dataset.labels.texts
    own = encoder.label_keys(dataset)  # [L, d], where labels are no texts
    facts = encoder.description.encoder
    if own is not None:
        blocks = [("instances", Role.QUERY, instances)]
    elif facts.query_prompt == facts.label_prompt:
        blocks = [("texts", Role.LABEL, (*instances, *labels))]
    else:
        blocks = [("instances", Role.QUERY, instances), ("labels", Role.LABEL, labels)]
    opened = OnnxEncoder(encoder.folder, facts)
    keys: list[Halves] = []
    for what, role, texts in blocks:
        step = progress.add_task(f"encode {what}", total=len(set(texts)))
        keys.append(
            encode_resumably(
                opened,
                texts,
                role=role,
                work=work / what,
                threads=options.threads,
                progress=completed(progress, step),
            )
        )
    return np.concatenate(keys if own is None else [*keys, own])


def _content(
    encoder: ExportedEncoder, dataset: Dataset, keys: Halves, options: BundleOptions, name: str
) -> BundleContent:
    instances, votes, texts = _instances(keys, dataset, options)
    return BundleContent(
        name=name,
        dataset=dataset.name,
        encoder=encoder.description.encoder,
        encoder_onnx=encoder.graph,
        tokenizer_json=encoder.tokenizer,
        keys=np.concatenate([instances, keys[len(dataset.train) :]]),
        indptr=votes.indptr,
        indices=votes.indices,
        instance_texts=texts,
        label_ids=dataset.labels.uids,
        label_texts=dataset.labels.texts,
        predictor=options.predictor,
        index=options.index,
        metrics=dict(encoder.description.parity),
        novel=encoder.novel(dataset),
    )


def _instances(
    keys: Halves, dataset: Dataset, options: BundleOptions
) -> tuple[Halves, csr_matrix, Sequence[str]]:
    """The instance block, reduced to its share: keys [m, d], votes [m, L] and texts [m].

    Where a method merges rows, a key is the mean of several texts'; the one that lies nearest to it
    stands for them in the bundle, and is what an answer's evidence shows.
    """
    count, votes, texts = len(dataset.train), dataset.train.labels_of, dataset.train.instances.texts
    if options.instances == 1.0:
        return keys[:count], votes, texts
    vectors: Floats = keys.astype(np.float32)
    memory = WholeMemory(instances=vectors[:count], labels_of=votes, labels=vectors[count:])
    [reduced] = reduce(memory, method=options.reduction, shares=[options.instances]).values()
    return (
        reduced.instances.astype(np.float16),
        reduced.labels_of,
        [texts[row] for row in reduced.texts_of.tolist()],
    )
