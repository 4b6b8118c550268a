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

from export.bundle.answers import drawn_test_rows, measure_known, measure_test
from export.bundle.confidence import fit_confidence
from export.bundle.encode import encode_resumably
from export.bundle.expected import FEWEST_TEXTS, expected
from export.bundle.hidden_rows import HiddenRows
from export.bundle.index_parts import build_index_parts
from export.bundle.spelling import choose_spelling
from export.exported_encoder import FUSION, RESIDUALS, ExportedEncoder, digest_of_items
from service.core.bundle import reranker_files
from service.core.bundle.bundle import Bundle
from service.core.bundle.content import BundleContent, measured_recall, write_bundle
from service.core.bundle.item_files import ItemFiles, with_fingerprint
from service.core.bundle.label_details import Details, dump
from service.core.bundle.manifest import ItemFacts, Manifest, PredictorFacts, SplitFacts
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
from service.core.types import Floats, Halves, Role, Rows, Spelling
from training.checkpoints.trained_texts import TrainedTexts
from training.datasets.dataset import Dataset, Split
from training.datasets.pair_weights import Relevance, vote_clicks, vote_weights, with_relevance
from training.evaluation.known_queries import FIRST, KnownQueries
from training.progress import Report, stages
from training.reduction import WholeMemory, budget_rows, representative_rows
from training.selection.memory_choices import HUBS, MOST_LOST, WORDS, choices_for
from training.selection.validation import default_slices

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
    memory = ItemMemory.of(items)
    for chunk in batches(len(instances), _CHUNK):
        vectors = instances[chunk].astype(np.float32)
        instances[chunk] = fused(memory, vectors).vectors.astype(np.float16)
        progress(chunk.stop)


@dataclass(frozen=True, kw_only=True)
class BundleOptions:
    """Settings for a bundle that follow neither from the encoder nor from the data set.

    The bundle keeps the share `instances` of the instance keys (`training.reduction`), and all
    label keys. `relevance` is the scale of its vote weights. With `recall`, the bundle gets
    the smallest `ef` that reaches it. None keeps the index's `ef`, or raises it until it reaches
    the index's `recall_goal`. Unless `hold_out_test`, test rows are instances, too: the settings
    are chosen, and new queries measured, without them. `quick` chooses and measures nothing. Unless
    `parts` is None, the keys are divided into so many. `choose` replaces the `predictor` by what is
    best on held-out rows, unless the encoder's run chose it on the same data set. A `reranker` that
    harms known queries is left out, unless `keep_reranker`. With a `cluster`, its machines encode,
    and build the parts side by side.
    """

    predictor: PredictorFacts
    choose: bool = False
    reranker: RerankerFiles | None = None
    keep_reranker: bool = False
    index: IndexParameters = field(default_factory=IndexParameters)
    instances: float = 1.0
    relevance: Relevance = "given"
    recall: float | None = None
    spelling: Spelling | None = None
    hold_out_test: bool = False
    quick: bool = False
    parts: int | None = None
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    cluster: Cluster | None = None


def check_options(options: BundleOptions, dataset: Dataset, target: Path) -> None:
    """Check options before the long work. Raises `InvalidInput` for anything that would fail."""
    if options.reranker is not None and options.reranker.facts.predictor != options.predictor:
        learned = options.reranker.facts.predictor
        raise InvalidInput(
            f"the reranker was learned at {learned}, and the bundle is to have"
            f" {options.predictor}: give the one of this encoder's run without other settings, or"
            " --reranker none"
        )
    budget_rows(options.instances, total=len(served_rows(dataset, options)))
    refuse_existing(target)
    refuse_unwritable(target)
    if not dataset.labels.texts:
        raise InvalidInput(f"data set {dataset.name} has no labels")
    if options.recall is not None and not 0 < options.recall <= 1:
        raise InvalidInput("recall must be above 0 and at most 1")
    if options.quick and options.recall is not None:
        raise InvalidInput("quick and recall exclude each other: recall is measured")
    if options.recall is not None and not len(dataset.test):
        raise InvalidInput(
            f"data set {dataset.name} has no test queries to measure recall with: give --ef"
        )


def served_rows(dataset: Dataset, options: BundleOptions) -> Split:
    """Return the rows of a data set that become instances."""
    return dataset.train if options.hold_out_test else dataset.train.followed_by(dataset.test)


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
    clicks = served_rows(dataset, options)
    served = with_relevance(replace(dataset, train=clicks), options.relevance)
    voting = with_relevance(dataset, options.relevance)
    work = work_folder(target)
    work.mkdir(parents=True, exist_ok=True)
    texts = (*served.train.instances.texts, *served.labels.texts)
    if len(texts) >= FEWEST_TEXTS and options.cluster is None:
        console.print(_expected(encoder, texts, options), soft_wrap=True)
    with stages(console) as report:
        keys = _encode(encoder, served, work, options, report)
        items = item_files(encoder, dataset, threads=options.threads)
        if items is not None:
            count = len(served.train)
            counted = _counted(report, "fuse instances with items", total=count)
            fuse_instances(keys[:count], items, progress=counted)
        tell = partial(console.print, soft_wrap=True)
        predictor = _predictor(encoder, voting, keys, options, report, tell)
        options = replace(options, predictor=predictor)
        test = _new_queries(encoder, dataset, keys, items, options)
        rows = _kept_rows(keys, served, options)
        content = _content(encoder, served, keys, rows, options, target.name, clicks.labels_of)
        split = split_facts(dataset, clicks, rows)
        content = replace(content, items=items, split=split, data=dataset.digest())
        if any(dataset.label_aliases or ()):
            aliases = _alias_keys(encoder, dataset, work, options, report)
            content = with_aliases(content, dataset.label_aliases or (), aliases)
        write_bundle(
            content,
            target,
            progress=_counted(report, "build the index", total=len(content.keys)),
            measure=partial(_measured, queries=test, options=options),
            choose=partial(
                _chosen,
                encoder=encoder,
                dataset=dataset,
                clicks=clicks,
                queries=test,
                options=options,
                report=report,
                tell=tell,
            ),
            build=partial(build_index_parts, work=work / "index", cluster=options.cluster),
        )
    shutil.rmtree(work)


def _expected(encoder: ExportedEncoder, texts: Sequence[str], options: BundleOptions) -> str:
    return expected(
        encoder.open_encoder(),
        texts,
        threads=options.threads,
        measured=0 if options.quick else len(texts),
    )


def _chosen(
    bundle: Bundle,
    *,
    encoder: ExportedEncoder,
    dataset: Dataset,
    clicks: Split,
    queries: NewQueries,
    options: BundleOptions,
    report: Report,
    tell: Callable[[str], None],
) -> Manifest:
    """Return the bundle's manifest with what is measured on hidden rows, and on its answers.

    There are no confidences if the encoder was trained, but does not say on which texts. `clicks`
    are the rows of the bundle, weighted as the data set has them.
    """
    if options.quick:
        return replace(bundle.manifest, spelling=options.spelling or "auto")
    trained = encoder.trained_texts()
    hidden = HiddenRows.of(bundle, trained or TrainedTexts(), threads=options.threads)
    hidden.cache.add(queries.by_text())
    known = KnownQueries.of_rows(clicks.labels_of, clicks.filtered)
    if len(clicks) + len(bundle.aliases) == bundle.manifest.memory.instances:
        hidden.know(known.rows)
    if options.spelling is None:
        hidden = hidden.described(choose_spelling(hidden, report=report))
    ask = partial(measure_known, split=clicks, known=known, report=report)
    figures = ask(hidden)
    texts = clicks.instances.select(known.rows).texts
    if options.spelling is None and hidden.bundle.manifest.spelling == "auto":
        if hidden.corrects(texts):
            off = replace(hidden.bundle.manifest, spelling="off")
            hidden, figures = _kept(hidden, figures, off, ask, "spelling", tell)
    if bundle.reranker is not None and not options.keep_reranker:
        without = reranker_files.without(hidden.bundle.manifest)
        hidden, figures = _kept(hidden, figures, without, ask, "the reranker", tell)
        if hidden.bundle.manifest.reranker is None:
            reranker_files.remove(bundle.folder)
    if trained is not None:
        hidden = hidden.described(fit_confidence(hidden, report=report))
    figures |= measure_test(hidden, dataset.test, report=report)
    facts = hidden.bundle.manifest
    return replace(facts, metrics={**facts.metrics, **figures})


def _kept(
    hidden: HiddenRows,
    figures: dict[str, float],
    without: Manifest,
    ask: Callable[[HiddenRows], dict[str, float]],
    name: str,
    tell: Callable[[str], None],
) -> tuple[HiddenRows, dict[str, float]]:
    """Return the bundle `without` what `name` says if it answers known queries worse with it.

    `figures` are those with it; the better bundle's are returned, too.
    """
    other = hidden.described(without)
    found = ask(other)
    if figures[FIRST] >= found[FIRST] - MOST_LOST:
        return hidden, figures
    tell(
        f"with {name} only {figures[FIRST]:.1f} % of the clicks of known queries would be answered"
        f" right, not {found[FIRST]:.1f} %: the bundle is without"
    )
    return other, found


@dataclass(frozen=True, kw_only=True)
class NewQueries:
    """The test rows that are measured: their texts, and their vectors before and after fusion."""

    texts: Sequence[str]  # [n]
    vectors: Floats  # [n, d]
    fused: Floats  # [n, d], with metadata items; the same without an item memory

    def by_text(self) -> dict[str, Floats]:
        """Return the vectors before fusion by text."""
        return dict(zip(self.texts, self.vectors, strict=True))


def _new_queries(
    encoder: ExportedEncoder,
    dataset: Dataset,
    keys: Halves,
    items: ItemFiles | None,
    options: BundleOptions,
) -> NewQueries:
    """Draw test rows. If they are in the memory, their keys [N + L, d] are their vectors."""
    rows = drawn_test_rows(0 if options.quick else len(dataset.test))
    texts = [dataset.test.instances.texts[row] for row in rows.tolist()]
    if not options.hold_out_test and items is None:
        vectors = keys[len(dataset.train) + rows].astype(np.float32)
        return NewQueries(texts=texts, vectors=vectors, fused=vectors)
    vectors = encode_all(encoder.open_encoder(), texts, role=Role.QUERY, threads=options.threads)
    if items is None:
        return NewQueries(texts=texts, vectors=vectors, fused=vectors)
    found = fused(ItemMemory.of(items), vectors).vectors
    return NewQueries(texts=texts, vectors=vectors, fused=found)


def split_facts(dataset: Dataset, clicks: Split, rows: Rows) -> SplitFacts:
    """Return which rows of a data set are in the memory: `rows` [m] of `clicks`."""
    total = len(dataset.train) + len(dataset.test)
    weight = float(clicks.labels_of[rows].sum())
    of_all = float(dataset.train.labels_of.sum() + dataset.test.labels_of.sum())
    test = int(np.count_nonzero(rows >= len(dataset.train)))
    return SplitFacts(
        train=len(rows) - test,
        test=test,
        left_out=total - len(rows),
        weight=max(0.0, weight),
        left_out_weight=max(0.0, of_all - weight),
    )


def _predictor(
    encoder: ExportedEncoder,
    dataset: Dataset,
    keys: Halves,
    options: BundleOptions,
    report: Report,
    tell: Callable[[str], None],
) -> PredictorFacts:
    """Return the best numbers on held-out rows with the keys [N + L, d], or the options' own.

    These stay if there are too few rows that the encoder has not trained on. Test rows, which may
    be the last of the N, are left out.
    """
    trained, rows = encoder.trained_texts(), len(dataset.train)
    labels = keys[len(keys) - len(dataset.labels) :]
    if not options.choose or options.quick or trained is None or encoder.chosen_on(dataset):
        return options.predictor
    train = dataset.train
    unseen = trained.unseen(train.instances.texts)
    slices = default_slices(train.labels_of, train.filtered, unseen=unseen)
    if len(slices.held_out) < FEWEST_HELD_OUT:
        return options.predictor
    report("choose temperature, lambda, b, words and hubs", 0, 1)
    choices = choices_for(
        dataset, keys[:rows], labels, slices=slices, words=WORDS, hubs=HUBS, tell=tell
    )
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
    count, clicks = len(columns), content.vote_clicks
    return replace(
        content,
        keys=np.concatenate([content.keys[:first], keys, content.keys[first:]]),
        indptr=np.concatenate([content.indptr, content.indptr[-1] + np.arange(1, count + 1)]),
        indices=np.concatenate([content.indices, columns]),
        instance_texts=[*content.instance_texts, *chain.from_iterable(aliases)],
        vote_weights=None if weights is None else np.pad(weights, (0, count), constant_values=1),
        vote_clicks=None if clicks is None else np.pad(clicks, (0, count), constant_values=1),
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
    encoder: ExportedEncoder,
    dataset: Dataset,
    keys: Halves,
    rows: Rows,
    options: BundleOptions,
    name: str,
    summed: csr_matrix,
) -> BundleContent:
    """Return the content of a bundle with the instances `rows` [m] and all labels.

    `summed` [N, L] are the pairs' clicks, before another scale.
    """
    kept, votes, texts = keys, dataset.train.labels_of, dataset.train.instances.texts
    if len(rows) < len(dataset.train):
        kept = keys[np.append(rows, np.arange(len(dataset.train), len(keys)))]
        votes, texts = votes[rows], dataset.train.instances.select(rows).texts
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
        vote_clicks=vote_clicks(summed[rows]),
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
    content: BundleContent, segment: Segment, *, queries: NewQueries, options: BundleOptions
) -> ChosenEf:
    """Choose the smallest ef that reaches the wanted recall. Without one, raise ef if it is low.

    Recall is measured with test queries (not their labels), or with keys if there is no test split.
    """
    if not len(queries.fused):
        return measured_recall(content, segment, sampled(content.keys))
    chosen = measured_recall(content, segment, queries.fused, recall=options.recall)
    if options.recall is not None and chosen.recall < options.recall:
        raise InvalidInput(
            f"recall {options.recall:g} cannot be reached: the longest queue, ef {chosen.ef}, has"
            f" {chosen.recall:.4f}; ask for less, or build a denser graph (--m, --ef-construction)"
        )
    return chosen


def _kept_rows(keys: Halves, dataset: Dataset, options: BundleOptions) -> Rows:
    """Return the instances [m] of N that `options` keeps, ascending."""
    count = len(dataset.train)
    if options.instances == 1.0:
        return np.arange(count)
    vectors: Floats = keys.astype(np.float32)
    memory = WholeMemory(
        instances=vectors[:count], labels_of=dataset.train.labels_of, labels=vectors[count:]
    )
    [rows] = representative_rows(memory, shares=[options.instances]).values()
    return np.sort(rows)
