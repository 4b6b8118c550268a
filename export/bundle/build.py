"""An exported encoder and a data set -> a bundle: encode, reduce, index, write; without torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy.sparse import csr_matrix

from export.bundle.confidence import fit_confidence
from export.bundle.encode import encode_resumably
from export.bundle.hidden_rows import HiddenRows
from export.bundle.index_parts import build_index_parts
from export.bundle.spelling import choose_spelling
from export.exported_encoder import FUSION, RESIDUALS, ExportedEncoder, digest_of_items
from service.core.bundle.bundle import Bundle
from service.core.bundle.content import BundleContent, measured_recall, write_bundle
from service.core.bundle.item_files import ItemFiles, with_fingerprint
from service.core.bundle.label_details import Details, dump
from service.core.bundle.manifest import ItemFacts, Manifest, PredictorFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.encoding.encoder import encode_all
from service.core.errors import InvalidInput
from service.core.files.arrays import unnamed_matrix
from service.core.files.atomic import refuse_existing, refuse_unwritable, writing
from service.core.index.choose_ef import ChosenEf, sampled
from service.core.index.hubs import hubness, penalties
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Segment, batches
from service.core.items.fusion import OnnxFusion, fused
from service.core.items.item_memory import ItemMemory
from service.core.processes.ray_cluster import Cluster
from service.core.types import Floats, Halves, Role, Spelling
from training.checkpoints.trained_texts import TrainedTexts
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import Relevance, masses, vote_weights, with_relevance
from training.progress import Report, stages
from training.reduction import (
    REPRESENTATIVE,
    WholeMemory,
    budget_rows,
    check_method,
    representative_rows,
)
from training.selection.memory_choices import HUBS, WORDS, choices_for
from training.selection.validation import default_slices

RECALL_QUERIES = 1000  # test queries that recall is measured with
FEWEST_HELD_OUT = 100  # with fewer rows, nothing is chosen on them
_CHUNK = 1_024  # instances that are fused between two progress reports


def item_files(encoder: ExportedEncoder, dataset: Dataset, *, threads: int) -> ItemFiles | None:
    """Return an exported encoder's item memory, or None if it has none.

    Raises `InvalidInput` if the encoder was trained on other items than the data set's.
    """
    facts = encoder.description.items
    if facts is None:
        return None
    if facts.digest != digest_of_items(dataset):
        raise InvalidInput(
            f"{encoder.folder} was trained on other metadata items than those of {dataset.name}:"
            " give the data set that it was trained on"
        )
    assert dataset.metadata is not None
    keys = encode_all(
        encoder.open_encoder(), dataset.metadata.texts, role=Role.LABEL, threads=threads
    )
    residuals: Halves = np.load(encoder.folder / RESIDUALS)
    graphs: Path = encoder.folder / FUSION
    values = (keys + residuals.astype(np.float32)).astype(np.float16)
    served = ItemFacts(items=facts.items, attended=facts.attended, fingerprint="")
    return ItemFiles(
        facts=with_fingerprint(served, graphs),
        ids=dataset.metadata.uids,
        texts=dataset.metadata.texts,
        keys=keys.astype(np.float16),
        projected=OnnxFusion(graphs).project(values),
        fusion=graphs,
    )


def fuse_instances(instances: Halves, items: ItemFiles, *, progress: Callable[[int], None]) -> None:
    """Fuse instance keys [N, d] with items, in place, as the service does for a click's query."""
    memory, fusion = ItemMemory.of(items), OnnxFusion(items.fusion)
    for chunk in batches(len(instances), _CHUNK):
        vectors = instances[chunk].astype(np.float32)
        instances[chunk] = fused(memory, fusion, vectors).vectors.astype(np.float16)
        progress(chunk.stop)


@dataclass(frozen=True, kw_only=True)
class BundleOptions:
    """Settings for a bundle that follow neither from the encoder nor from the data set.

    The bundle keeps the share `instances` of the instance keys, chosen by the method `reduction`,
    and all label keys. `relevance` is the scale of its vote weights. With `recall`, the bundle gets
    the smallest `ef` that reaches it. None keeps the index's `ef`, or raises it until it reaches
    the index's `recall_goal`. Unless `parts` is None, the keys are divided into so many. `choose`
    replaces the `predictor` by what is best on held-out rows, unless the encoder's run chose it on
    the same data set. With a `cluster`, its machines encode, and build the parts side by side.
    """

    predictor: PredictorFacts
    choose: bool = False
    reranker: RerankerFiles | None = None
    index: IndexParameters = field(default_factory=IndexParameters)
    instances: float = 1.0
    reduction: str = REPRESENTATIVE
    relevance: Relevance = "given"
    recall: float | None = None
    spelling: Spelling | None = None
    parts: int | None = None
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    cluster: Cluster | None = None


def check_options(options: BundleOptions, dataset: Dataset, target: Path) -> None:
    """Check options before the long work. Raises `InvalidInput` for anything that would fail."""
    check_method(options.reduction)
    if options.reranker is not None and options.reranker.facts.predictor != options.predictor:
        learned = options.reranker.facts.predictor
        raise InvalidInput(
            f"the reranker was learned at {learned}, and the bundle is to have"
            f" {options.predictor}: give the one of this encoder's run without other settings, or"
            " --reranker none"
        )
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

    Finished parts of the vectors and of the index stay in `work_folder` until the bundle is
    complete. A second call continues an interrupted one. Raises `InvalidInput` as `check_options`
    does.
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
            fuse_instances(keys[:rows], items, progress=counted)
        options = replace(options, predictor=_predictor(encoder, dataset, keys, options, report))
        content = replace(_content(encoder, dataset, keys, options, target.name), items=items)
        if any(dataset.label_aliases or ()):
            aliases = _alias_keys(encoder, dataset, work, options, report)
            content = with_aliases(content, dataset.label_aliases or (), aliases)
        write_bundle(
            content,
            target,
            progress=_counted(report, "build the index", total=len(content.keys)),
            measure=partial(_measured, encoder=encoder, dataset=dataset, options=options),
            choose=partial(_chosen, encoder=encoder, spelling=options.spelling, report=report),
            build=partial(build_index_parts, work=work / "index", cluster=options.cluster),
        )
    shutil.rmtree(work)


def _chosen(
    bundle: Bundle, *, encoder: ExportedEncoder, spelling: Spelling | None, report: Report
) -> Manifest:
    """Return the bundle's manifest with what is measured on hidden rows.

    There are no confidences if the encoder was trained, but does not say on which texts.
    """
    trained = encoder.trained_texts()
    hidden = HiddenRows.of(bundle, trained or TrainedTexts())
    if spelling is None:
        facts = choose_spelling(hidden, report=report)
        hidden = replace(hidden, bundle=replace(bundle, manifest=facts))
    if trained is None:
        return hidden.bundle.manifest
    return fit_confidence(hidden, report=report)


def _predictor(
    encoder: ExportedEncoder,
    dataset: Dataset,
    keys: Halves,
    options: BundleOptions,
    report: Report,
) -> PredictorFacts:
    """Return the best numbers on held-out rows with the keys [N + L, d], or the options' own.

    These stay if there are too few rows that the encoder has not trained on.
    """
    trained, rows = encoder.trained_texts(), len(dataset.train)
    if not options.choose or trained is None or encoder.chosen_on(dataset):
        return options.predictor
    train = dataset.train
    unseen = trained.unseen(train.instances.texts)
    slices = default_slices(train.labels_of, train.filtered, unseen=unseen)
    if len(slices.held_out) < FEWEST_HELD_OUT:
        return options.predictor
    report("choose temperature, lambda, b, words and hubs", 0, 1)
    choices = choices_for(dataset, keys[:rows], keys[rows:], slices=slices, words=WORDS, hubs=HUBS)
    report("choose temperature, lambda, b, words and hubs", 1, 1)
    return choices.predictor


def _encode(
    encoder: ExportedEncoder,
    dataset: Dataset,
    work: Path,
    options: BundleOptions,
    report: Report,
) -> Halves:
    """Return K, the N instance keys above the L label keys, in fp16, [N + L, d].

    If queries and labels have the same prompt, a text that is both an instance and a label has
    one vector, and is encoded once.
    """
    instances, labels = dataset.train.instances.texts, dataset.labels.texts
    label_keys = encoder.label_keys(dataset)  # [L, d], or None if they are encoded from texts
    facts = encoder.description.encoder
    with writing(work):
        keys = unnamed_matrix(work, (len(instances) + len(labels), facts.dimension))
    of_instances, of_labels = np.split(keys, [len(instances)])  # views
    encode = partial(_encode_block, encoder, work=work, options=options, report=report)
    if label_keys is None and facts.query_prompt == facts.label_prompt:
        encode("texts", (*instances, *labels), role=Role.LABEL, out=keys)
        return keys
    encode("instances", instances, role=Role.QUERY, out=of_instances)
    if label_keys is None:
        encode("labels", labels, role=Role.LABEL, out=of_labels)
    else:
        of_labels[:] = label_keys
    return keys


def _alias_keys(
    encoder: ExportedEncoder,
    dataset: Dataset,
    work: Path,
    options: BundleOptions,
    report: Report,
) -> Halves:
    """Return the keys [A, d] of all aliases, label by label; encoded as texts of labels."""
    texts = tuple(chain.from_iterable(dataset.label_aliases or ()))
    return _encode_block(
        encoder, "aliases", texts, role=Role.LABEL, work=work, options=options, report=report
    )


def _encode_block(
    encoder: ExportedEncoder,
    block: str,
    texts: Sequence[str],
    *,
    role: Role,
    work: Path,
    options: BundleOptions,
    report: Report,
    out: Halves | None = None,
) -> Halves:
    """Return the keys [n, d] of the texts of one `block`, which names the step and its folder.

    The keys are written into `out`, if it is given.
    """
    return encode_resumably(
        encoder.open_encoder(),
        texts,
        role=role,
        work=work / block,
        threads=options.threads,
        progress=_counted(report, f"encode {block}", total=len(set(texts))),
        cluster=options.cluster,
        exported=encoder.folder,
        out=out,
    )


def with_aliases(
    content: BundleContent, aliases: Sequence[Sequence[str]], keys: Halves
) -> BundleContent:
    """Return a bundle's content with an instance row for each of the labels' `aliases` [L].

    Such a row votes for its label alone, with weight 1. Their `keys` [A, d] come behind those of
    the N instances, as `label_details` says. Like posted rows, they have no hub penalty.
    """
    first, hubs, weights = len(content.instance_texts), content.hubs, content.vote_weights
    columns = np.repeat(np.arange(len(aliases), dtype=np.int32), list(map(len, aliases)))
    count = len(columns)
    return replace(
        content,
        keys=np.concatenate([content.keys[:first], keys, content.keys[first:]]),
        indptr=np.concatenate([content.indptr, content.indptr[-1] + np.arange(1, count + 1)]),
        indices=np.concatenate([content.indices, columns]),
        instance_texts=[*content.instance_texts, *chain.from_iterable(aliases)],
        vote_weights=None if weights is None else np.pad(weights, (0, count), constant_values=1),
        masses=None
        if content.masses is None
        else np.pad(content.masses, (0, count), constant_values=1),
        hubs=None if hubs is None else np.insert(hubs, first, np.zeros(count, np.float16)),
        aliases=np.arange(first, first + count),
    )


def label_details(dataset: Dataset, *, instances: int) -> list[str]:
    """Return the details of each label [L], or an empty list if no label has fields or aliases.

    The rows of the aliases come behind `instances` others.
    """
    if dataset.label_fields is None and dataset.label_aliases is None:
        return []
    total, row, details = len(dataset.labels), instances, []
    for fields, aliases in zip(
        dataset.label_fields or ({},) * total, dataset.label_aliases or ((),) * total, strict=True
    ):
        rows = tuple(range(row, row + len(aliases)))
        details.append(dump(Details(metadata=fields, aliases=aliases, rows=rows)))
        row += len(aliases)
    return details


def _counted(report: Report, step: str, *, total: int) -> Callable[[int], None]:
    """Report the start of a step; returns a callback that takes the number of finished items."""
    report(step, 0, total)
    return lambda done: report(step, done, total)


def _content(
    encoder: ExportedEncoder, dataset: Dataset, keys: Halves, options: BundleOptions, name: str
) -> BundleContent:
    kept, votes, texts = _reduced(keys, dataset, options)
    parity = encoder.description.parity
    share = options.predictor.hubs
    hubs = penalties(hubness(kept, instances=len(texts)), share=share) if share else None
    return BundleContent(
        name=name,
        dataset=dataset.name,
        encoder=encoder.description.encoder,
        encoder_onnx=encoder.graph,
        tokenizer_json=encoder.tokenizer,
        keys=kept,
        indptr=votes.indptr,
        indices=votes.indices,
        vote_weights=vote_weights(votes),
        masses=masses(votes),
        hubs=hubs,
        instance_texts=texts,
        label_ids=dataset.labels.uids,
        label_texts=dataset.labels.texts,
        label_details=label_details(dataset, instances=len(texts)),
        predictor=options.predictor,
        index=options.index,
        # P@1 is left out: the encoder's sample may have been drawn from another data set.
        metrics={name: value for name, value in parity.items() if "_P@1" not in name},
        novel=encoder.novel(dataset),
        learned=dataset.learned,
        reranker=options.reranker,
        spelling=options.spelling or "off",
        parts=options.parts,
    )


def _measured(
    content: BundleContent,
    segment: Segment,
    *,
    encoder: ExportedEncoder,
    dataset: Dataset,
    options: BundleOptions,
) -> ChosenEf:
    """Choose the smallest ef that reaches the wanted recall. Without one, raise ef if it is low.

    Recall is measured with test queries (not their labels), or with keys if there is no test split.
    """
    texts = dataset.test.instances.texts
    rows = np.random.default_rng(0).permutation(len(texts))[:RECALL_QUERIES].tolist()
    if not rows:
        return measured_recall(content, segment, sampled(content.keys))
    queries = encode_all(
        encoder.open_encoder(),
        [texts[row] for row in rows],
        role=Role.QUERY,
        threads=options.threads,
    )
    if content.items is not None:
        fusion = OnnxFusion(content.items.fusion)
        queries = fused(ItemMemory.of(content.items), fusion, queries).vectors
    chosen = measured_recall(content, segment, queries, recall=options.recall)
    if options.recall is not None and chosen.recall < options.recall:
        raise InvalidInput(
            f"recall {options.recall:g} cannot be reached: the longest queue, ef {chosen.ef}, has"
            f" {chosen.recall:.4f}; ask for less, or build a denser graph (--m, --ef-construction)"
        )
    return chosen


def _reduced(
    keys: Halves, dataset: Dataset, options: BundleOptions
) -> tuple[Halves, csr_matrix, Sequence[str]]:
    """Reduce the N instances to the m that `options` keeps; all L labels are kept.

    Returns the keys [m + L, d], and the instances' votes [m, L] and texts [m].
    """
    count, votes, texts = len(dataset.train), dataset.train.labels_of, dataset.train.instances.texts
    if options.instances == 1.0:
        return keys, votes, texts
    vectors: Floats = keys.astype(np.float32)
    memory = WholeMemory(instances=vectors[:count], labels_of=votes, labels=vectors[count:])
    [rows] = representative_rows(memory, shares=[options.instances]).values()
    kept = np.append(rows, np.arange(count, len(keys)))
    return keys[kept], votes[rows], [texts[row] for row in rows.tolist()]
