"""An exported encoder and a data set -> a bundle: encode, reduce, index, write; without torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy.sparse import csr_matrix

from export.bundle.encode import encode_resumably
from export.bundle.items import fused_instances, fused_queries, item_files
from export.exported_encoder import ExportedEncoder
from service.core.bundle.content import BundleContent, write_bundle
from service.core.bundle.manifest import PredictorFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.encoding.encoder import encode_all
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_existing, refuse_unwritable
from service.core.index.choose_ef import choose_ef
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import RowFilter, Segment
from service.core.prediction.predictor import voting_kind
from service.core.types import Floats, Halves, Role, RowKind
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import Relevance, vote_weights, with_relevance
from training.progress import Report, stages
from training.reduction import budget_rows, check_method, reduce
from training.reduction.memory import WholeMemory

RECALL_QUERIES = 1000  # test queries that recall is measured with


@dataclass(frozen=True, kw_only=True)
class BundleOptions:
    """Choices for a bundle that neither the encoder nor the data set makes.

    The bundle keeps the share `instances` of the instance keys, chosen by the method `reduction`,
    and all label keys. `relevance` is the scale of the weights of its votes. `recall` replaces the
    index's `ef` by the smallest that reaches it; None: keep `ef`. `reranker` is the second ranking
    that the bundle gets, None for none.
    """

    predictor: PredictorFacts
    reranker: RerankerFiles | None = None
    index: IndexParameters = field(default_factory=IndexParameters)
    instances: float = 1.0
    reduction: str = "random"
    relevance: Relevance = "given"
    recall: float | None = None
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)


def check_options(options: BundleOptions, dataset: Dataset, target: Path) -> None:
    """Raise `InvalidInput` for anything that would fail later, before long work begins."""
    check_method(options.reduction)
    _check_reranker(options)
    budget_rows(options.instances, total=len(dataset.train))
    refuse_existing(target)
    refuse_unwritable(target)
    if not dataset.labels.texts:
        raise InvalidInput(f"data set {dataset.name} has no labels")
    if options.recall is not None and not 0 < options.recall <= 1:
        raise InvalidInput("recall must be above 0 and at most 1")
    if options.recall is not None and not len(dataset.test):
        raise InvalidInput(
            f"data set {dataset.name} has no test queries to measure recall with: give --ef"
        )


def _check_reranker(options: BundleOptions) -> None:
    """Raise `InvalidInput` for a second ranking that was learned from another memory's answers."""
    if options.reranker is None or options.reranker.facts.predictor == options.predictor:
        return
    learned, used = (
        f"lambda {facts.memorization:g}, b {facts.depth} and tau {facts.tau:g}"
        for facts in (options.reranker.facts.predictor, options.predictor)
    )
    raise InvalidInput(
        f"the second ranking was learned at {learned}, and the bundle is to have {used}: give the"
        " one of this encoder's run without other settings, or --reranker none"
    )


def work_folder(target: Path) -> Path:
    """Return the folder next to `target` where an interrupted export keeps finished vectors."""
    return target.absolute().with_name(f".{target.name}.encoding")


def scratch_folder(target: Path, name: str) -> Path:
    """Return a path in `work_folder(target)`, after removing what an interrupted export left."""
    folder = work_folder(target) / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def export_bundle(
    encoder: ExportedEncoder,
    dataset: Dataset,
    target: Path,
    *,
    options: BundleOptions,
    console: Console,
) -> None:
    """Write the bundle at `target`.

    Finished vectors are kept in `work_folder` until the bundle is complete, so that a second call
    continues an interrupted one. Raises `InvalidInput` as `check_options` does.
    """
    check_options(options, dataset, target)
    dataset = with_relevance(dataset, options.relevance)
    work = work_folder(target)
    work.mkdir(parents=True, exist_ok=True)
    with stages(console) as report:
        keys = _encode(encoder, dataset, work, options, report)
        items = item_files(encoder, dataset, threads=options.threads)
        if items is not None:
            rows = len(dataset.train)
            counted = _counted(report, "fuse instances with items", total=rows)
            keys[:rows] = fused_instances(keys[:rows], items, progress=counted)
        content = replace(_content(encoder, dataset, keys, options, target.name), items=items)
        write_bundle(
            content,
            target,
            progress=_counted(report, "build the index", total=len(content.keys)),
            tune=None
            if options.recall is None
            else partial(_tuned, encoder=encoder, dataset=dataset, options=options),
        )
    shutil.rmtree(work)


def _encode(
    encoder: ExportedEncoder,
    dataset: Dataset,
    work: Path,
    options: BundleOptions,
    report: Report,
) -> Halves:
    """Return K = [X; Z] in fp16, [N + L, d].

    If queries and labels have the same prompt, a text that is both an instance and a label has
    one vector, and is encoded once.
    """
    instances, labels = dataset.train.instances.texts, dataset.labels.texts
    label_keys = encoder.label_keys(dataset)  # [L, d], or None if they are encoded from texts
    facts = encoder.description.encoder
    if label_keys is not None:
        blocks = [("instances", Role.QUERY, instances)]
    elif facts.query_prompt == facts.label_prompt:
        blocks = [("texts", Role.LABEL, (*instances, *labels))]
    else:
        blocks = [("instances", Role.QUERY, instances), ("labels", Role.LABEL, labels)]
    opened = encoder.open_encoder()
    keys: list[Halves] = []
    for block, role, texts in blocks:
        keys.append(
            encode_resumably(
                opened,
                texts,
                role=role,
                work=work / block,
                threads=options.threads,
                progress=_counted(report, f"encode {block}", total=len(set(texts))),
            )
        )
    return np.concatenate(keys if label_keys is None else [*keys, label_keys])


def _counted(report: Report, step: str, *, total: int) -> Callable[[int], None]:
    """A callback that says how many items of a step are finished; none are so far."""
    report(step, 0, total)
    return lambda done: report(step, done, total)


def _content(
    encoder: ExportedEncoder, dataset: Dataset, keys: Halves, options: BundleOptions, name: str
) -> BundleContent:
    instances, votes, texts = _reduced_instances(keys, dataset, options)
    return BundleContent(
        name=name,
        dataset=dataset.name,
        encoder=encoder.description.encoder,
        encoder_onnx=encoder.graph,
        tokenizer_json=encoder.tokenizer,
        keys=np.concatenate([instances, keys[len(dataset.train) :]]),
        indptr=votes.indptr,
        indices=votes.indices,
        vote_weights=vote_weights(votes),
        instance_texts=texts,
        label_ids=dataset.labels.uids,
        label_texts=dataset.labels.texts,
        predictor=options.predictor,
        index=options.index,
        metrics=encoder.bundle_metrics,
        novel=encoder.novel(dataset),
        query_encoder=encoder.query_encoder,
        learned=dataset.learned,
        reranker=options.reranker,
    )


def _tuned(
    content: BundleContent,
    segment: Segment,
    *,
    encoder: ExportedEncoder,
    dataset: Dataset,
    options: BundleOptions,
) -> BundleContent:
    """Return the content with the smallest ef that reaches the recall; labels play no part."""
    texts = dataset.test.instances.texts
    rows = np.random.default_rng(0).permutation(len(texts))[:RECALL_QUERIES].tolist()
    queries = encode_all(
        encoder.open_query_encoder(),
        [texts[row] for row in rows],
        role=Role.QUERY,
        threads=options.threads,
    )
    if content.items is not None:
        queries = fused_queries(content.items, queries)
    instances, rows_of = len(content.instance_texts), len(content.keys)
    kind = voting_kind(content.predictor.memorization)
    chosen = choose_ef(
        segment,
        content.keys,
        queries,
        recall=options.recall or 1.0,
        depth=content.predictor.depth,
        row_filter=RowFilter(
            start=instances if kind is RowKind.LABEL else 0,
            stop=instances if kind is RowKind.INSTANCE else rows_of,
        ),
    )
    return replace(
        content,
        index=replace(content.index, ef=chosen.ef),
        metrics={**content.metrics, **chosen.as_metrics()},
    )


def _reduced_instances(
    keys: Halves, dataset: Dataset, options: BundleOptions
) -> tuple[Halves, csr_matrix, Sequence[str]]:
    """Return the instances to keep: keys [m, d], votes [m, L] and texts [m].

    A method that merges rows replaces several keys by their mean. The merged key gets the text
    whose own key is nearest; answers show that text as evidence.
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
