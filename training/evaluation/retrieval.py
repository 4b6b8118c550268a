"""Encodes test rows for a bundle and finds their nearest keys, here or on a Ray cluster.

On a cluster, both are done in parts of `_PART_ROWS` rows (`service.core.work_parts`). Rows are
encoded and searched together with the same rows as in one process, so no bit differs.

Shapes: n test rows, d dimensions, b retrieved keys per row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from service.core.bundle import manifest
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.object_store import is_url, local_bundle
from service.core.encoding.encoder import Encoder, OnnxEncoder, encode_all
from service.core.errors import InvalidConfig
from service.core.files.atomic import replaced_file
from service.core.index.found_rows import pad
from service.core.index.protocol import Progress, batches
from service.core.label_filter import LabelFilter
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.predictor import retrieved
from service.core.processes.ray_cluster import Cluster
from service.core.types import Floats, PredictOptions, Role, RowKind
from service.core.work_parts import numbered, run_parts
from training.evaluation.prediction import Neighbours

_LAMBDA = {None: 0.5, RowKind.INSTANCE: 1.0, RowKind.LABEL: 0.0}  # at which these keys vote
CHUNK_ROWS = 512  # test rows that are searched between two progress updates
# A multiple of CHUNK_ROWS and of the texts that `encode_all` batches, so parts cut no batch.
_PART_ROWS = 8 * CHUNK_ROWS
_VECTORS = "vectors.npy"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A bundle's folder or URL, the cache of URLs, and its fingerprint."""

    bundle: str
    cache: Path
    fingerprint: str

    @classmethod
    def of(cls, bundle: str, cache: Path, opened: Bundle) -> Place:
        """Return the place of a bundle that is `opened` here."""
        fingerprint = manifest.fingerprint(opened.manifest)
        bundle = bundle if is_url(bundle) else str(Path(bundle).absolute())
        return cls(bundle=bundle, cache=cache.absolute(), fingerprint=fingerprint)


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A cluster that encodes and searches, and the folder of finished parts."""

    cluster: Cluster
    work: Path
    place: Place


def encode_rows(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    threads: int,
    progress: Progress,
    elsewhere: Elsewhere | None = None,
) -> Floats:
    """Return the vectors of the test rows [n, d]."""
    if elsewhere is None:
        return encode_all(encoder, texts, role=Role.QUERY, threads=threads, progress=progress)
    # The order in which `encode_all` cuts texts into batches.
    by_length = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    cuts = list(batches(len(texts), _PART_ROWS))
    parts = numbered(
        [
            (
                {
                    "fingerprint": encoder.fingerprint,
                    "texts": [texts[place] for place in by_length[cut]],
                },
                cut.stop - cut.start,
            )
            for cut in cuts
        ]
    )
    folders = run_parts(
        partial(_encode_part, place=elsewhere.place),
        parts,
        work=elsewhere.work / "encoded",
        cluster=elsewhere.cluster,
        progress=progress,
    )
    vectors = np.empty((len(texts), encoder.dimension), np.float32)
    for cut, folder in zip(cuts, folders, strict=True):
        vectors[by_length[cut]] = np.load(folder / _VECTORS)
    return vectors


def nearest_keys(
    view: View,
    texts: Sequence[str],
    vectors: Floats,
    *,
    options: PredictOptions,
    kind: RowKind | None,
    progress: Progress,
) -> Neighbours:
    """Return the nearest keys of a kind (None: both), [n, b] each.

    A filtered view is searched deeper until enough labels are found.
    """
    # As deep as for a request by default. For all labels that R@100 needs, it might read all.
    wanted = replace(options, top_k=PredictOptions().top_k, memorization=_LAMBDA[kind])
    chunks = []
    for chunk in batches(len(vectors), CHUNK_ROWS):
        found = retrieved(view, texts[chunk], vectors[chunk], wanted, depth=options.depth)
        chunks.append(found[:2])
        progress(chunk.stop)
    return stacked(chunks)


def nearest_keys_elsewhere(
    elsewhere: Elsewhere,
    texts: Sequence[str],
    vectors: Floats,
    *,
    options: PredictOptions,
    wanted: LabelFilter | None,
    kind: RowKind | None,
    progress: Progress,
) -> Neighbours:
    """Return what `nearest_keys` returns for a view under the filter `wanted`."""
    file = elsewhere.work.absolute() / _VECTORS
    with replaced_file(file) as whole:
        np.save(whole, vectors)
    same = f"{elsewhere.place.fingerprint} {options} {wanted} {kind}".encode()
    parts = []
    for cut in batches(len(vectors), _PART_ROWS):
        digest = hashlib.sha256(same + np.ascontiguousarray(vectors[cut]).tobytes())
        arguments = {
            "identity": digest.hexdigest(),
            "start": cut.start,
            "texts": list(texts[cut]),
        }
        parts.append((arguments, cut.stop - cut.start))
    folders = run_parts(
        partial(
            _search_part,
            place=elsewhere.place,
            file=file,
            options=options,
            wanted=wanted,
            kind=kind,
        ),
        numbered(parts),
        work=elsewhere.work / f"nearest-{'all' if kind is None else kind.name.lower()}",
        cluster=elsewhere.cluster,
        progress=progress,
    )
    return stacked(
        [(np.load(folder / "similarities.npy"), np.load(folder / "rows.npy")) for folder in folders]
    )


def stacked(found: Sequence[Neighbours]) -> Neighbours:
    """Join the keys of several chunks of queries; row -1 fills missing places."""
    width = max((rows.shape[1] for _, rows in found), default=0)
    similarities, rows = zip(*(pad(*one, count=width) for one in found), strict=True)
    return np.concatenate(similarities), np.concatenate(rows)


def _encode_part(
    folder: Path, progress: Progress, *, place: Place, fingerprint: str, texts: list[str]
) -> None:
    encoder = _opened(place).encoder
    if encoder.fingerprint != fingerprint:
        raise _another(place)
    vectors = encode_all(encoder, texts, role=Role.QUERY, threads=1, progress=progress)
    np.save(folder / _VECTORS, vectors)


def _search_part(
    folder: Path,
    progress: Progress,
    *,
    place: Place,
    file: Path,
    options: PredictOptions,
    wanted: LabelFilter | None,
    kind: RowKind | None,
    identity: str,
    start: int,
    texts: list[str],
) -> None:
    """Search the rows from `start` on; `identity` covers their vectors and all options."""
    opened = _opened(place)
    view = opened.memory.only(opened.memory.view, wanted)
    vectors = np.load(file, mmap_mode="r")[start : start + len(texts)]
    similarities, rows = nearest_keys(
        view,
        texts,
        np.array(vectors),
        options=options,
        kind=kind,
        progress=progress,
    )
    np.save(folder / "similarities.npy", similarities)
    np.save(folder / "rows.npy", rows)


@dataclass(frozen=True, kw_only=True)
class _Opened:
    encoder: OnnxEncoder
    memory: KnowledgeMemory


@lru_cache(maxsize=1)
def _opened(place: Place) -> _Opened:
    """Open a bundle once per worker process, because this takes longer than a part."""
    bundle = open_bundle(local_bundle(place.bundle, place.cache))
    if manifest.fingerprint(bundle.manifest) != place.fingerprint:
        raise _another(place)
    return _Opened(
        encoder=OnnxEncoder(bundle.folder, bundle.manifest.encoder),
        memory=KnowledgeMemory(bundle),
    )


def _another(place: Place) -> InvalidConfig:
    return InvalidConfig(f"{place.bundle} is another bundle on a machine of the cluster")
