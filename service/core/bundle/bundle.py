"""The bundle, format version 1: one folder with everything that is served.

| file                            | content                                                    |
|---------------------------------|------------------------------------------------------------|
| `manifest.json`                 | format, version, facts, size and SHA-256 of every file     |
| `encoder.onnx`                  | token ids -> unit vectors; pools and normalizes inside     |
| `tokenizer.json`                | the tokenizer, in the format of Rust's `tokenizers`        |
| `keys.npy`                      | fp16 [N + L, d]: instance rows, then label rows (Eq. 3)    |
| `segments/base.index`           | HNSW over distinct keys, in the index library's own format |
| `segments/base.equal.npy`       | only if rows share keys: these rows, see `frozen_segment`  |
| `parts/I-of-N/*`                | instead of the three above, in a bundle in parts: those of |
|                                 | the part's rows, and int64 `rows.npy`, ascending           |
| `values/indptr.npy`             | int64 [N + 1]: instance i votes for indices[indptr[i]:     |
|                                 | indptr[i + 1]]                                             |
| `values/indices.npy`            | int32: label columns; label row j votes for column j only, |
|                                 | so the identity block of V is not stored                   |
| `values/weights.npy`            | optional: float32, the weight of each vote in `indices`,   |
|                                 | below 0 for negative pairs; without it every vote weighs 1 |
| `values/hours.npy`              | in snapshots: int32, the hour since 1970 from which the    |
|                                 | weight of each vote decays, 2^31 - 1 if it does not        |
| `values/clicks.npy`             | optional: float32 [N], the clicks for which a vote of      |
|                                 | weight 1 of the instance stands; without it one            |
| `hubs.npy`                      | optional: fp16 [N + L], what is subtracted from the        |
|                                 | similarities of each row, see `index.hubs`                 |
| `instances/texts.*`             | instance texts, see `text_store`                           |
| `instances/clicks.npy`          | in snapshots: int64, ascending, the instances that were    |
|                                 | posted as clicks, so that a repeated click replaces its row|
| `instances/aliases.npy`         | optional: int64, ascending, the instances that are aliases |
|                                 | of labels; each votes for its label alone                  |
| `labels/ids.*`, `labels/texts.*`| label ids (with lookup) and texts                          |
| `labels/details.*`              | optional: metadata, aliases, ... see `label_details`       |
| `rules.json`                    | in snapshots: the rules, see `rules`                       |
| `words/*`                       | the lexical index of all rows, see `word_files`            |
| `novel/*`                       | optional: IRENE's combiner and classifiers, `irene_files`  |
| `items/*`                       | optional: items that queries attend to, `item_files`       |
| `reranker/*`                    | optional: the reranker's trees, `reranker_files`           |

`content.write_bundle` writes a bundle. Opening one verifies the ranges of all facts, the checksum
of every file and the numbers in the arrays, and maps the large files. Nothing is pickled. A process
that needs some parts of the keys, or none, opens and verifies no others.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.core.bundle import irene_files, item_files, manifest, reranker_files, word_files
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.item_files import ItemFiles
from service.core.bundle.label_details import LabelDetails
from service.core.bundle.manifest import Manifest
from service.core.bundle.object_store import hold
from service.core.bundle.reranker_files import RerankerFiles
from service.core.errors import BundleAltered
from service.core.files import text_store
from service.core.files.arrays import (
    constant,
    is_constant,
    mapped,
    require_ascending,
    require_finite,
    require_offsets,
    require_within,
)
from service.core.files.folder_facts import verify_files
from service.core.files.text_store import TextStore
from service.core.index.devices import ScanDevice
from service.core.index.key_parts import KeyPart, KeyShare, PartedKeys, PartedSegment, parts_of
from service.core.index.protocol import Keys, Segment, batches
from service.core.lexical.dictionary import Dictionary
from service.core.lexical.word_index import FrozenWords
from service.core.rules import Rule, from_document
from service.core.times import NEVER
from service.core.types import Floats, Halves, Indices, Rows

ENCODER, TOKENIZER = "encoder.onnx", "tokenizer.json"
KEYS, BASE_SEGMENT = "keys.npy", "segments/base.index"
PART_ROWS, PART_KEYS, PART_SEGMENT = "rows.npy", "keys.npy", "base.index"
INDPTR, INDICES = "values/indptr.npy", "values/indices.npy"
VOTE_WEIGHTS, VOTE_HOURS = "values/weights.npy", "values/hours.npy"
VOTE_CLICKS = "values/clicks.npy"
HUBS, RULES = "hubs.npy", "rules.json"
INSTANCE_TEXTS, CLICKS = "instances/texts", "instances/clicks.npy"
ALIASES = "instances/aliases.npy"
LABEL_IDS, LABEL_TEXTS, LABEL_DETAILS = "labels/ids", "labels/texts", "labels/details"
MOST_VOTE_WEIGHT = 1e9
MOST_HUBNESS = 4.0  # more than two cosines can differ
_COMPARED_ROWS = 8_192  # rows compared at once


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An opened bundle; its arrays are read-only memory maps, constant if it has no such file."""

    folder: Path
    manifest: Manifest
    keys: Keys  # [N + L, d]
    segment: Segment
    indptr: NDArray[np.int64]  # [N + 1]
    indices: Indices
    instance_texts: TextStore
    clicks: Rows  # rows of posted instances, ascending
    aliases: Rows  # instance rows that are aliases of labels, ascending
    posted: Rows  # rows that were posted while a service ran, ascending
    label_ids: TextStore
    label_texts: TextStore
    label_details: LabelDetails
    words: FrozenWords
    vote_weights: Floats  # of the votes in `indices`
    vote_hours: Indices  # of the votes in `indices`
    vote_clicks: Floats  # [N]; for how many a weight of 1 stands
    hubs: Halves  # [N + L], subtracted from the rows' similarities
    novel: NovelFiles | None = None
    items: ItemFiles | None = None
    reranker: RerankerFiles | None = None
    rules: tuple[Rule, ...] = ()
    device: ScanDevice | None = None  # searches the keys and live rows; None: the CPU does
    has_hubs: bool = False  # whether anything is subtracted
    parts: Mapping[int, KeyPart] = field(default_factory=dict)  # those that are held, by number

    @property
    def instances(self) -> int:
        """N, the number of instances."""
        return self.manifest.memory.instances

    @property
    def labels(self) -> int:
        """L, the number of labels."""
        return self.manifest.memory.labels

    def rows_of(self, share: KeyShare) -> Rows:
        """Return the rows of a share, ascending; of a bundle in parts, a part that is held."""
        if self.manifest.key_parts:
            return self.parts[share.index].rows
        return np.flatnonzero(share.holds(self.keys))

    @cached_property
    def dictionary(self) -> Dictionary:
        """The whole words of the encoder's tokenizer."""
        return Dictionary(self.folder / TOKENIZER)

    @cached_property
    def wordless(self) -> Rows:
        """The instances whose text has no words, ascending."""
        has_words = np.zeros(self.manifest.memory.rows, bool)
        has_words[self.words.postings] = True
        return np.flatnonzero(~has_words[: self.instances])

    @cached_property
    def voters(self) -> tuple[NDArray[np.int64], Indices]:
        """The transpose of Y: instances indices[indptr[j] : indptr[j + 1]] vote for label j."""
        indptr = np.zeros(self.labels + 1, np.int64)
        np.cumsum(np.bincount(self.indices, minlength=self.labels), out=indptr[1:])
        instances = np.repeat(np.arange(self.instances, dtype=np.int32), np.diff(self.indptr))
        return indptr, instances[np.argsort(self.indices, kind="stable")]


def files_read(facts: Manifest, *, parts: Collection[int] | None = None) -> list[str]:
    """Return the names of the files that a bundle with this manifest must have.

    Of a bundle in parts, those of the numbered `parts` are read; None: of all. All other files are
    optional, and read only if the manifest lists them.
    """
    names = [
        *(ENCODER, TOKENIZER, INDPTR, INDICES),
        *text_store.files(INSTANCE_TEXTS),
        *text_store.files(LABEL_IDS, lookup=True),
        *text_store.files(LABEL_TEXTS),
        *word_files.FILES,
    ]
    if not facts.key_parts:
        names += [KEYS, *facts.index.files(BASE_SEGMENT, rows=facts.memory.rows)]
    for index in parts_held(facts, parts):
        names += _files_of_part(facts, index)
    if f"{LABEL_DETAILS}.bin" in facts.files:
        names += text_store.files(LABEL_DETAILS)
    if facts.predictor.hubs:
        names.append(HUBS)
    if facts.novel is not None:
        names += irene_files.FILES
    if facts.items is not None:
        names += item_files.files(facts.items)
    if facts.reranker is not None:
        names += reranker_files.FILES
    return names


def without_parts(facts: Manifest, parts: Collection[int] | None) -> Manifest:
    """Return the manifest without the files of the parts that are not opened, see `open_bundle`."""
    closed = set(files_read(facts)).difference(files_read(facts, parts=parts))
    return replace(
        facts, files={name: file for name, file in facts.files.items() if name not in closed}
    )


def parts_held(facts: Manifest, wanted: Collection[int] | None) -> Collection[int]:
    """Return the numbers of the parts to open if some are `wanted`, None: all.

    With IRENE, each process may have to encode labels, for which it searches all label keys.
    """
    every = range(len(facts.key_parts))
    if wanted is None or facts.novel is not None:
        return every
    return [index for index in wanted if index in every]


def part_folder(index: int, count: int) -> str:
    """Return the path of part `index` of `count` within a bundle."""
    return f"parts/{index}-of-{count}"


def _files_of_part(facts: Manifest, index: int) -> list[str]:
    folder, part = part_folder(index, len(facts.key_parts)), facts.key_parts[index]
    graph = replace(facts.index, nodes=part.nodes)
    files = graph.files(f"{folder}/{PART_SEGMENT}", rows=part.rows) if part.rows else []
    return [f"{folder}/{PART_ROWS}", f"{folder}/{PART_KEYS}", *files]


def open_bundle(
    folder: Path,
    *,
    verify: bool = True,
    device: ScanDevice | None = None,
    parts: Collection[int] | None = None,
) -> Bundle:
    """Verify and open a bundle. If a `device` is given, it searches the keys exactly.

    Of a bundle in parts, those with the numbers `parts` are opened; None: all. The checksum of each
    opened file is verified, and the numbers in each array that readers rely on. A child process may
    pass `verify=False` for a bundle that its parent has verified. Raises `BundleMissing`,
    `BundleAltered` or `BundleUnsupported`, naming the file.
    """
    facts = manifest.read(folder)
    if facts.key_parts and sum(part.rows for part in facts.key_parts) != facts.memory.rows:
        raise BundleAltered(f"{folder}: the parts of the keys do not hold {facts.memory.rows} rows")
    for name in files_read(facts, parts=parts):
        if name not in facts.files:
            raise BundleAltered(f"{folder}: the manifest lists no file {name}")
    if verify:
        verify_files(folder, without_parts(facts, parts).files)
    memory, dimension = facts.memory, facts.encoder.dimension
    held = {index: _open_part(folder, facts, index) for index in parts_held(facts, parts)}

    def of_votes(name: str, plain: np.generic, count: int) -> NDArray[Any]:
        if name not in facts.files:
            return constant(plain, count)
        return mapped(folder / name, type(plain), (count,))

    keys, segment = _keys_and_segment(folder, facts, held, device)
    has_details = f"{LABEL_DETAILS}.bin" in facts.files
    bundle = Bundle(
        folder=folder,
        manifest=facts,
        keys=keys,
        segment=segment,
        parts=held,
        indptr=mapped(folder / INDPTR, np.int64, (memory.instances + 1,)),
        indices=mapped(folder / INDICES, np.int32, (memory.votes,)),
        vote_weights=of_votes(VOTE_WEIGHTS, np.float32(1), memory.votes),
        vote_hours=of_votes(VOTE_HOURS, np.int32(NEVER), memory.votes),
        vote_clicks=of_votes(VOTE_CLICKS, np.float32(1), memory.instances),
        has_hubs=HUBS in facts.files,
        hubs=of_votes(HUBS, np.float16(0), memory.rows),
        instance_texts=TextStore(folder / INSTANCE_TEXTS, count=memory.instances),
        **{
            field: mapped(folder / name, np.int64) if name in facts.files else np.zeros(0, np.int64)
            for field, name in (
                ("clicks", CLICKS),
                ("aliases", ALIASES),
                ("posted", word_files.POSTED),
            )
        },
        label_ids=TextStore(folder / LABEL_IDS, lookup=True, count=memory.labels),
        label_texts=TextStore(folder / LABEL_TEXTS, count=memory.labels),
        label_details=LabelDetails(
            TextStore(folder / LABEL_DETAILS, count=memory.labels) if has_details else None,
            aliased=ALIASES in facts.files,
        ),
        words=word_files.read(folder, rows=memory.rows, verify=verify),
        novel=None
        if facts.novel is None
        else irene_files.read(
            folder, facts.novel, labels=memory.labels, dimension=dimension, verify=verify
        ),
        items=None
        if facts.items is None
        else item_files.read(folder, facts.items, dimension=dimension, verify=verify),
        reranker=None
        if facts.reranker is None
        else reranker_files.read(folder, facts.reranker, verify=verify),
        rules=_rules(folder / RULES) if RULES in facts.files else (),
        device=device,
    )
    if verify:
        _check_numbers(bundle)
    descriptor = hold(folder)
    if descriptor is not None:
        weakref.finalize(bundle, os.close, descriptor)
    return bundle


def _open_part(folder: Path, facts: Manifest, index: int) -> KeyPart:
    parts = facts.key_parts
    part, place = parts[index], folder / part_folder(index, len(parts))
    dimension = facts.encoder.dimension
    keys: Halves = mapped(place / PART_KEYS, np.float16, (part.rows, dimension))
    segment: Segment = PartedSegment((), rows=0, dimension=dimension)
    if part.rows:
        graph = replace(facts.index, nodes=part.nodes)
        segment = graph.open(place / PART_SEGMENT, rows=part.rows, dimension=dimension)
    rows: Rows = mapped(place / PART_ROWS, np.int64, (part.rows,))
    return KeyPart(rows=rows, keys=keys, segment=segment)


def _keys_and_segment(
    folder: Path, facts: Manifest, held: Mapping[int, KeyPart], device: ScanDevice | None
) -> tuple[Keys, Segment]:
    """Return all keys that are held, and what searches them."""
    rows, dimension = facts.memory.rows, facts.encoder.dimension
    keys: Keys
    if facts.key_parts:
        keys = PartedKeys(list(held.values()), rows=rows, dimension=dimension)
    else:
        keys = mapped(folder / KEYS, np.float16, (rows, dimension))
    if device is not None:
        from service.core.index.device_segment import DeviceSegment  # loads faiss

        return keys, DeviceSegment(device, keys, cuts=[facts.memory.instances])
    if facts.key_parts:
        segments = [(part.rows, part.segment) for part in held.values()]
        return keys, PartedSegment(segments, rows=rows, dimension=dimension)
    return keys, facts.index.open(folder / BASE_SEGMENT, rows=rows, dimension=dimension)


def _rules(file: Path) -> tuple[Rule, ...]:
    """Return the rules of a file; raises `BundleAltered`."""
    try:
        return tuple(map(from_document, orjson.loads(file.read_bytes())))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleAltered(f"{file} does not hold rules: {error!r}") from error


def require_sound(bundle: Bundle) -> None:
    """Compare facts that a bundle stores twice. This takes longer than opening it.

    The graph must hold the keys, and the lookup must find each id. The details of posted labels
    must be readable. Raises `BundleAltered`, naming the file.
    """
    folder = bundle.folder
    if bundle.device is None and not bundle.manifest.key_parts:  # a device needs no graph
        _require_equal(folder / BASE_SEGMENT, bundle.segment, bundle.keys)
    for place, index, part in _held(bundle):
        _require_equal(place / PART_SEGMENT, part.segment, part.keys)
        if (parts_of(part.keys, len(bundle.manifest.key_parts)) != index).any():
            raise BundleAltered(f"{place / PART_KEYS} holds keys of another part")
    bundle.label_ids.verify_order()
    word_files.verify_order(bundle.words, folder)
    if bundle.label_details.store is not None:
        bundle.label_details.verify(instances=bundle.instances)
    items = bundle.items
    if items is not None:
        if isinstance(items.ids, TextStore):
            items.ids.verify_order()
        if items.index is not None:
            _require_equal(items.index.path, items.index.segment, items.keys)
        if item_files.with_fingerprint(items.facts, items.fusion) != items.facts:
            raise BundleAltered(f"{items.fusion}: the graphs are not those of the fingerprint")
    reranker = bundle.reranker
    if reranker is not None and reranker_files.with_fingerprint(reranker).facts != reranker.facts:
        raise BundleAltered(f"{reranker.trees}: trees or words are not those of the fingerprint")


def _held(bundle: Bundle) -> Iterator[tuple[Path, int, KeyPart]]:
    """Yield the folder, the number and the content of each part that is held."""
    count = len(bundle.manifest.key_parts)
    for index, part in bundle.parts.items():
        yield bundle.folder / part_folder(index, count), index, part


def _require_equal(path: Path, segment: Segment, keys: Keys) -> None:
    """Raise `BundleAltered` unless the segment at `path` holds the vectors `keys` [R, d]."""
    for batch in batches(len(keys), _COMPARED_ROWS):
        rows = np.arange(batch.start, batch.stop)
        if not np.array_equal(segment.vectors(rows), keys[batch]):
            raise BundleAltered(f"{path} holds other vectors than the keys")


def _check_numbers(bundle: Bundle) -> None:
    """Check the numbers in all arrays that answering relies on.

    A wrong number would fail some later request, or silently make an answer wrong. These checks
    take less time than the checksums. Raises `BundleAltered`, naming the file.
    """
    folder, labels = bundle.folder, bundle.labels
    _check_keys(bundle)
    require_offsets(folder / INDPTR, bundle.indptr, end=len(bundle.indices))
    require_within(folder / INDICES, bundle.indices, 0, labels)
    least_clicks = float(np.finfo(np.float32).smallest_subnormal)
    for name, numbers, least, greatest in (
        (VOTE_WEIGHTS, bundle.vote_weights, -MOST_VOTE_WEIGHT, MOST_VOTE_WEIGHT),
        (VOTE_HOURS, bundle.vote_hours, 0, 2**31),
        (VOTE_CLICKS, bundle.vote_clicks, least_clicks, np.inf),
        (HUBS, bundle.hubs, -MOST_HUBNESS, MOST_HUBNESS),
    ):
        if not is_constant(numbers):
            require_within(folder / name, numbers, least, greatest)
    for name, rows, stop in (
        (CLICKS, bundle.clicks, bundle.instances),
        (ALIASES, bundle.aliases, bundle.instances),
        (word_files.POSTED, bundle.posted, bundle.manifest.memory.rows),
    ):
        require_within(folder / name, rows, 0, stop)
        require_ascending(folder / name, rows, strictly=True)
    below_zero = np.flatnonzero(bundle.vote_weights < 0)
    rows = np.searchsorted(bundle.indptr, below_zero, side="right") - 1
    if not np.isin(rows, bundle.clicks).all():
        raise BundleAltered(f"{folder / VOTE_WEIGHTS} is below 0 for rows that are no clicks")
    for store in (bundle.instance_texts, bundle.label_ids, bundle.label_texts):
        store.verify()
    if bundle.label_details.store is not None:
        bundle.label_details.store.verify()


def _check_keys(bundle: Bundle) -> None:
    if not bundle.manifest.key_parts:
        require_finite(bundle.folder / KEYS)
    for place, _, part in _held(bundle):
        require_finite(place / PART_KEYS)
        require_within(place / PART_ROWS, part.rows, 0, bundle.manifest.memory.rows)
        require_ascending(place / PART_ROWS, part.rows, strictly=True)
