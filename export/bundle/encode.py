"""Encoding of many texts that continues after an interruption, without encoding a text twice.

The work folder has `vectors.npy` (fp16 [n, d], memory-mapped) and `progress.json`: the number of
finished texts, and a key over encoder, role and texts. A different key starts from the beginning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import orjson

from service.core.encoding.encoder import Encoder, encode_all
from service.core.files.atomic import write_file
from service.core.types import Halves, Role

_STEP_TEXTS = 8192  # texts between two writes of progress.json


def encode_resumably(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    role: Role,
    work: Path,
    threads: int,
    progress: Callable[[int], None],
) -> Halves:
    """Return unit vectors [n, d] of `texts` in fp16; equal texts are encoded once.

    `progress` is called with the number of finished distinct texts.
    """
    distinct = sorted(set(texts), key=lambda text: (len(text), text))
    key = _key(encoder, distinct, role)
    vectors, done = _open(work, key, shape=(len(distinct), encoder.dimension))
    progress(done)
    while done < len(distinct):
        step = distinct[done : done + _STEP_TEXTS]
        vectors[done : done + len(step)] = encode_all(
            encoder, step, role=role, threads=threads, progress=_shifted(progress, done)
        )
        vectors.flush()
        done += len(step)
        _record(work, key, done)
    place = {text: position for position, text in enumerate(distinct)}
    gathered: Halves = vectors[[place[text] for text in texts]]
    return gathered


def _shifted(progress: Callable[[int], None], start: int) -> Callable[[int], None]:
    return lambda done: progress(start + done)


def _open(work: Path, key: str, *, shape: tuple[int, int]) -> tuple[np.memmap, int]:
    """Return the file of vectors and the number of vectors in it that are finished."""
    file = work / "vectors.npy"
    done = _recorded(work, key) if file.exists() else 0
    if done:
        return np.lib.format.open_memmap(file, mode="r+"), done
    # First the record, then the file: an older record must never refer to the new, empty file.
    _record(work, key, 0)
    return np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=shape), 0


def _key(encoder: Encoder, texts: Sequence[str], role: Role) -> str:
    digest = hashlib.sha256(f"{encoder.fingerprint}\0{role.value}\0{len(texts)}".encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _recorded(work: Path, key: str) -> int:
    """Return the recorded number of finished texts, 0 for a record with another key."""
    try:
        record = orjson.loads((work / "progress.json").read_bytes())
        return int(record["done"]) if record["key"] == key else 0
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # no readable record
        return 0


def _record(work: Path, key: str, done: int) -> None:
    write_file(work / "progress.json", orjson.dumps({"key": key, "done": done}))
