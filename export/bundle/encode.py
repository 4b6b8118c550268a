"""Encode many texts once each, in parts of `_PART_TEXTS` texts (`service.core.work_parts`).

A part's folder has `vectors.npy`, fp16 [n, d]. An interrupted export continues with the parts that
are missing. A part is encoded again for another encoder, role or text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from export.exported_encoder import open_exported
from service.core.encoding.encoder import Encoder, encode_all
from service.core.errors import InvalidInput
from service.core.index.protocol import Progress, batches, shifted
from service.core.processes.ray_cluster import Cluster
from service.core.types import Halves, Role
from service.core.work_parts import numbered, run_parts

_PART_TEXTS = 8192
_VECTORS = "vectors.npy"


def encode_resumably(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    role: Role,
    work: Path,
    threads: int,
    progress: Progress,
    cluster: Cluster | None = None,
    exported: Path | None = None,
    out: Halves | None = None,
) -> Halves:
    """Return unit vectors [n, d] of `texts` in fp16. Texts with equal tokens are encoded once.

    They share one vector and one index node, even if the encoder's rounding depends on the batch.
    The vectors are written into `out`, if it is given.

    `progress` is called with the number of finished distinct texts. The machines of a `cluster`
    open the encoder in the folder `exported`; the same texts are encoded together as without it.
    """
    same_tokens = _same_tokens(encoder, sorted(set(texts), key=_by_length), role)
    distinct = sorted(set(same_tokens.values()), key=_by_length)
    cuts = list(batches(len(distinct), _PART_TEXTS))
    same = {"fingerprint": encoder.fingerprint, "role": role.value}
    parts = numbered([({**same, "texts": distinct[cut]}, cut.stop - cut.start) for cut in cuts])
    if cluster is None:
        make = partial(_encode_part, encoder=encoder, threads=threads)
    else:
        assert exported is not None
        make = partial(_encode_part_there, exported=exported.absolute())
    folders = run_parts(
        make,
        parts,
        work=work,
        cluster=cluster,
        progress=shifted(progress, len(same_tokens) - len(distinct)),
    )
    place = {text: position for position, text in enumerate(distinct)}
    places = np.array([place[same_tokens[text]] for text in texts], np.int64)  # [n]
    order = np.argsort(places, kind="stable")
    gathered = np.empty((len(texts), encoder.dimension), np.float16) if out is None else out
    for cut, folder in zip(cuts, folders, strict=True):
        first, last = np.searchsorted(places, (cut.start, cut.stop), sorter=order)
        rows = order[first:last]
        gathered[rows] = np.load(folder / _VECTORS)[places[rows] - cut.start]
    return gathered


def _encode_part(
    folder: Path,
    progress: Progress,
    *,
    encoder: Encoder,
    threads: int,
    fingerprint: str,
    role: str,
    texts: Sequence[str],
) -> None:
    """Write the vectors of `texts`, encoded by the encoder of this `fingerprint`."""
    if encoder.fingerprint != fingerprint:
        raise InvalidInput("the encoder is another one than when this command began")
    vectors = encode_all(encoder, texts, role=Role(role), threads=threads, progress=progress)
    np.save(folder / _VECTORS, vectors.astype(np.float16))


def _encode_part_there(
    folder: Path,
    progress: Progress,
    *,
    exported: Path,
    fingerprint: str,
    role: str,
    texts: list[str],
) -> None:
    """Do the work of `_encode_part` in one thread of a worker process of a cluster."""
    _encode_part(
        folder,
        progress,
        encoder=_opened(exported, fingerprint),
        threads=1,
        fingerprint=fingerprint,
        role=role,
        texts=texts,
    )


@cache
def _opened(exported: Path, fingerprint: str) -> Encoder:
    """Open an exported encoder once per worker process; the fingerprint tells it from others."""
    return open_exported(exported).open_encoder()


def _by_length(text: str) -> tuple[int, str]:
    return len(text), text


def _same_tokens(encoder: Encoder, texts: Sequence[str], role: Role) -> dict[str, str]:
    """Map each text to the first of `texts` that has the same tokens."""
    first: dict[bytes, str] = {}
    found: dict[str, str] = {}
    for batch in batches(len(texts), _PART_TEXTS):
        for text, tokens in zip(
            texts[batch], encoder.tokenize(texts[batch], role=role), strict=True
        ):
            digest = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=16)
            found[text] = first.setdefault(digest.digest(), text)
    return found
