"""The content of a bundle, and how it is written. `bundle` describes its files.

A bundle is written under a temporary name, synced and renamed, so it is complete or absent.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

import numpy as np
import orjson

from service.core.bundle import irene_files, item_files, manifest, reranker_files, word_files
from service.core.bundle.bundle import (
    ALIASES,
    BASE_SEGMENT,
    CLICKS,
    ENCODER,
    HUBS,
    INDICES,
    INDPTR,
    KEYS,
    LABEL_DETAILS,
    PART_KEYS,
    PART_ROWS,
    PART_SEGMENT,
    RULES,
    TOKENIZER,
    VOTE_CLICKS,
    VOTE_HOURS,
    VOTE_WEIGHTS,
    Bundle,
    open_bundle,
    part_folder,
)
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.item_files import ItemFiles
from service.core.bundle.manifest import (
    ConfidenceFacts,
    EncoderFacts,
    IndexFacts,
    LearnedFacts,
    Manifest,
    PartFacts,
    PredictorFacts,
    SplitFacts,
)
from service.core.bundle.reranker_files import RerankerFiles
from service.core.files import text_store
from service.core.files.atomic import new_folder
from service.core.files.folder_facts import file_facts
from service.core.index.choose_ef import ChosenEf, sampled, smallest_ef
from service.core.index.frozen_segment import (
    SCAN_ROWS_PER_QUEUE_PLACE,
    build_segment,
    equal_path,
    open_segment,
)
from service.core.index.key_parts import PartedSegment, parts_of
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Progress, RowFilter, Segment, shifted
from service.core.rules import Rule
from service.core.types import Floats, Halves, Indices, Rows, ScoreKind, Spelling

_RECORDED_LIBRARIES = (
    "keymatch numpy onnxruntime onnxruntime-gpu faiss-cpu faiss-gpu hnswlib torch".split()
)
# Scanning this many items takes 0.1 ms and misses none. Walking through a graph takes a few
# hundredths of a millisecond and misses some.
INDEXED_ITEMS = 2_000
ITEM_RECALL = 0.99
ITEM_QUERIES = 1_000  # the most queries that measure the index over items


@dataclass(frozen=True, kw_only=True)
class BundleContent:
    """The content of a bundle before it is written: arrays, texts, and the encoder's two files."""

    name: str
    dataset: str
    encoder: EncoderFacts
    encoder_onnx: Path
    tokenizer_json: Path
    keys: Halves  # [N + L, d]
    indptr: Rows  # [N + 1]
    indices: Indices
    instance_texts: Sequence[str]
    label_ids: Sequence[str]
    label_texts: Sequence[str]
    predictor: PredictorFacts
    index: IndexParameters
    metrics: dict[str, float]
    vote_weights: Floats | None = None  # of `indices`; None: every vote weighs 1
    vote_hours: Indices | None = None  # of `indices`; None: no weight decays
    vote_clicks: Floats | None = None  # [N]; for how many a weight of 1 stands; None: for one
    hubs: Halves | None = None  # [N + L], if the predictor's `hubs` are above 0
    clicks: Rows = field(default_factory=lambda: np.zeros(0, np.int64))  # posted instances
    # Instance rows that are aliases; the label details name those of each label.
    aliases: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    posted: Rows = field(default_factory=lambda: np.zeros(0, np.int64))  # all posted rows
    label_details: Sequence[str] = ()  # [L] texts from `label_details.dump`, or empty
    rules: Sequence[Rule] = ()
    version: int = 0  # a snapshot's last write: its sequence number
    log: str = ""  # a snapshot's label log: its id
    log_chain: str = ""  # a snapshot's label log: its chain at `version`, hexadecimal
    novel: NovelFiles | None = None
    items: ItemFiles | None = None
    data: str | None = None  # the digest of the data set
    learned: LearnedFacts | None = None
    split: SplitFacts | None = None
    reranker: RerankerFiles | None = None
    spelling: Spelling = "off"
    confidence: dict[ScoreKind, ConfidenceFacts] | None = None
    parts: int | None = None  # into which the keys are divided; None: they are not

    @property
    def row_filter(self) -> RowFilter:
        """The rows that vote at the predictor's lambda (Eq. 8): instances, labels, or both."""
        instances, memorization = len(self.instance_texts), self.predictor.memorization
        return RowFilter(
            start=instances if memorization == 0.0 else 0,
            stop=instances if memorization == 1.0 else len(self.keys),
        )

    @classmethod
    def like(
        cls,
        bundle: Bundle,
        *,
        name: str,
        keys: Halves,
        indptr: Rows,
        indices: Indices,
        instance_texts: Sequence[str],
        label_ids: Sequence[str],
        label_texts: Sequence[str],
        metrics: dict[str, float],
    ) -> BundleContent:
        """Return a new bundle's content: other rows, with the encoder and settings of `bundle`.

        IRENE's files are left out: they belong to the rows. `replace` adds optional parts.
        """
        facts = bundle.manifest
        return cls(
            name=name,
            dataset=facts.dataset,
            encoder=facts.encoder,
            encoder_onnx=bundle.folder / ENCODER,
            tokenizer_json=bundle.folder / TOKENIZER,
            keys=keys,
            indptr=indptr,
            indices=indices,
            instance_texts=instance_texts,
            label_ids=label_ids,
            label_texts=label_texts,
            predictor=facts.predictor,
            index=facts.index.parameters(),
            metrics=metrics,
            items=bundle.items,
            data=facts.data,
            learned=facts.learned,
            split=facts.split,
            reranker=bundle.reranker,
            spelling=facts.spelling,
            confidence=facts.confidence,
            parts=len(facts.key_parts) or None,
        )


Measure = Callable[[BundleContent, Segment], ChosenEf]  # chooses how a built graph is searched
Choose = Callable[[Bundle], Manifest]  # returns the manifest, with what was measured on the bundle
# Writes `PART_SEGMENT` into each folder, over the `PART_KEYS` there, as `build_part` does.
BuildParts = Callable[[Sequence[Path], IndexParameters, Progress], None]


def build_parts(folders: Sequence[Path], parameters: IndexParameters, progress: Progress) -> None:
    """Build the graphs of parts one after the other, each on all cores; see `BuildParts`."""
    done = 0
    for folder in folders:
        keys = np.load(folder / PART_KEYS, mmap_mode="r")
        build_part(keys, folder, parameters, shifted(progress, done))
        done += len(keys)


def build_part(keys: Halves, folder: Path, parameters: IndexParameters, progress: Progress) -> None:
    """Build the graph over the keys [n, d] of a part in `folder`; without keys, there is none."""
    if len(keys):
        build_segment(keys, parameters, folder / PART_SEGMENT, progress)


def write_bundle(
    content: BundleContent,
    target: Path,
    *,
    progress: Progress,
    measure: Measure | None = None,
    choose: Choose | None = None,
    build: BuildParts = build_parts,
) -> None:
    """Build the index, measure its recall, and write the bundle to `target`.

    `progress` is called with the number of indexed rows. `measure` chooses the queue length for
    searches of the graph. By default, a sample of the keys serves as queries, and the content's
    `ef` is raised if it misses the `recall_goal`. `choose` may change the manifest at the end.
    `build` builds the graphs of a bundle in parts. Raises `InvalidData` if `target` exists.
    """
    with new_folder(target) as folder:
        for source, name in ((content.encoder_onnx, ENCODER), (content.tokenizer_json, TOKENIZER)):
            (folder / name).write_bytes(source.read_bytes())
        _write_rows(content, folder)
        text_store.write(folder / "instances/texts", content.instance_texts)
        text_store.write(folder / "labels/ids", content.label_ids, lookup=True)
        text_store.write(folder / "labels/texts", content.label_texts)
        texts = chain(content.instance_texts, content.label_texts)
        word_files.write(texts, folder, posted=content.posted)
        if content.label_details:
            text_store.write(folder / LABEL_DETAILS, content.label_details)
        if content.rules:
            (folder / RULES).write_bytes(orjson.dumps([rule.document() for rule in content.rules]))
        if content.novel is not None:
            irene_files.write(content.novel, folder)
        if content.items is not None:
            item_files.write(content.items, folder)
            # Items are not counted as rows; `progress` is called because it may raise to stop.
            content = replace(content, items=_indexed(content, folder, lambda done: progress(0)))
        if content.reranker is not None:
            reranker_files.write(content.reranker, folder)
        segment, nodes, parts = _indexed_keys(content, folder, progress, build)
        if measure is None:
            chosen = measured_recall(content, segment, sampled(content.keys))
        else:
            chosen = measure(content, segment)
        parameters = replace(content.index, ef=chosen.ef)
        facts = IndexFacts.of(parameters, recall=chosen.recall, nodes=nodes)
        content = replace(content, metrics={**content.metrics, **chosen.as_metrics()})
        manifest.write(replace(_describe(content, folder, facts), parts=parts), folder)
        if choose is not None:
            manifest.write(choose(open_bundle(folder, verify=False)), folder)


def _indexed_keys(
    content: BundleContent, folder: Path, progress: Progress, build: BuildParts
) -> tuple[Segment, int, list[PartFacts] | None]:
    """Write the keys and the graphs over them; returns what searches them, its nodes and parts."""
    if not content.parts:
        np.save(folder / KEYS, content.keys)
        (folder / BASE_SEGMENT).parent.mkdir()
        graph = build_segment(content.keys, content.index, folder / BASE_SEGMENT, progress)
        return graph, graph.nodes, None
    number, places, of_parts = parts_of(content.keys, content.parts), [], []
    for index in range(content.parts):
        place, rows = folder / part_folder(index, content.parts), np.flatnonzero(number == index)
        place.mkdir(parents=True)
        np.save(place / PART_ROWS, rows)
        np.save(place / PART_KEYS, content.keys[rows])
        places.append(place)
        of_parts.append(rows)
    build(places, content.index, progress)
    parts, opened = [], []
    for place, rows in zip(places, of_parts, strict=True):
        shared = equal_path(place / PART_SEGMENT)
        later = np.load(shared, mmap_mode="r").shape[1] if shared.exists() else 0
        facts = PartFacts(rows=len(rows), nodes=len(rows) - later)
        parts.append(facts)
        if facts.rows:
            segment = open_segment(
                place / PART_SEGMENT,
                library=content.index.library,
                rows=facts.rows,
                nodes=facts.nodes,
                dimension=content.keys.shape[1],
            )
            opened.append((rows, segment))
    searched = PartedSegment(opened, rows=len(content.keys), dimension=content.keys.shape[1])
    return searched, sum(facts.nodes for facts in parts), parts


def _write_rows(content: BundleContent, folder: Path) -> None:
    """Write what all rows vote for, and the optional arrays of rows."""
    for file in (INDPTR, CLICKS):
        (folder / file).parent.mkdir()
    np.save(folder / INDPTR, content.indptr.astype(np.int64))
    np.save(folder / INDICES, content.indices.astype(np.int32))
    for name, numbers, kind in (
        (VOTE_WEIGHTS, content.vote_weights, np.float32),
        (VOTE_HOURS, content.vote_hours, np.int32),
        (VOTE_CLICKS, content.vote_clicks, np.float32),
        (HUBS, content.hubs, np.float16),
    ):
        if numbers is not None:
            np.save(folder / name, numbers.astype(kind))
    for name, rows in ((CLICKS, content.clicks), (ALIASES, content.aliases)):
        if len(rows):
            np.save(folder / name, rows.astype(np.int64))


def _indexed(content: BundleContent, folder: Path, progress: Progress) -> ItemFiles | None:
    """Build an index over the items in `folder`; return the items with its facts.

    The `ef` is the smallest that finds the share `ITEM_RECALL` of the attended items; a sample of
    the bundle's keys serves as queries. If a scan is as fast, no file is written.
    """
    items = content.items
    if items is None or items.index is not None or items.facts.items < INDEXED_ITEMS:
        return items
    path = folder / item_files.INDEX
    segment = build_segment(items.keys, content.index, path, progress)
    chosen = smallest_ef(
        segment,
        items.keys,
        content.keys[:: len(content.keys) // ITEM_QUERIES + 1].astype(np.float32),
        recall=ITEM_RECALL,
        depth=items.facts.attended,
        longest=items.facts.items // SCAN_ROWS_PER_QUEUE_PLACE,
    )
    if chosen.recall < ITEM_RECALL:
        path.unlink()
        equal_path(path).unlink(missing_ok=True)
        return items
    parameters = replace(content.index, ef=chosen.ef, recall_goal=ITEM_RECALL)
    index = IndexFacts.of(parameters, recall=chosen.recall, nodes=segment.nodes)
    return replace(items, facts=replace(items.facts, index=index))


def measured_recall(
    content: BundleContent, segment: Segment, queries: Floats, *, recall: float | None = None
) -> ChosenEf:
    """Return the smallest ef that reaches `recall` on `queries` [B, d].

    Without one, measure the recall of the content's ef; raise ef if the recall is below its goal.
    """
    return smallest_ef(
        segment,
        content.keys,
        queries,
        shortest=content.index.ef if recall is None else None,
        recall=content.index.recall_goal if recall is None else recall,
        depth=content.predictor.depth,
        row_filter=content.row_filter,
    )


def _describe(content: BundleContent, folder: Path, index: IndexFacts) -> Manifest:
    return Manifest(
        format=manifest.FORMAT,
        version=manifest.VERSION,
        name=content.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        dataset=content.dataset,
        encoder=content.encoder,
        memory=manifest.MemoryFacts(
            instances=len(content.instance_texts),
            labels=len(content.label_ids),
            votes=len(content.indices),
            version=content.version,
        ),
        index=index,
        predictor=content.predictor,
        metrics=content.metrics,
        libraries={"python": platform.python_version(), **_library_versions()},
        files=file_facts(folder),
        log=content.log,
        log_chain=content.log_chain,
        novel=None if content.novel is None else content.novel.facts,
        items=None if content.items is None else content.items.facts,
        data=content.data,
        learned=content.learned,
        split=content.split,
        reranker=None if content.reranker is None else content.reranker.facts,
        spelling=content.spelling,
        confidence=content.confidence,
    )


def _library_versions() -> dict[str, str]:
    versions = {}
    for name in _RECORDED_LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
