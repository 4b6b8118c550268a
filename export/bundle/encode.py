"""Encode many texts once each, and continue after an interruption.

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
from service.core.files.atomic import replaced_file, write_file
from service.core.index.protocol import batches
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
    """Return unit vectors [n, d] of `texts` in fp16. Texts with equal tokens are encoded once.

    They share one vector and one index node, even if the encoder's rounding depends on the batch.
    `progress` is called with the number of finished distinct texts.
    """
    same_tokens = _same_tokens(encoder, sorted(set(texts), key=_by_length), role)
    distinct = sorted(set(same_tokens.values()), key=_by_length)
    progress = _shifted(progress, len(same_tokens) - len(distinct))
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
    gathered: Halves = vectors[[place[same_tokens[text]] for text in texts]]
    return gathered


def _by_length(text: str) -> tuple[int, str]:
    return len(text), text


def _same_tokens(encoder: Encoder, texts: Sequence[str], role: Role) -> dict[str, str]:
    """Map each text to the first of `texts` that has the same tokens."""
    first: dict[bytes, str] = {}
    found: dict[str, str] = {}
    for batch in batches(len(texts), _STEP_TEXTS):
        for text, tokens in zip(
            texts[batch], encoder.tokenize(texts[batch], role=role), strict=True
        ):
            digest = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=16)
            found[text] = first.setdefault(digest.digest(), text)
    return found


def _shifted(progress: Callable[[int], None], start: int) -> Callable[[int], None]:
    return lambda done: progress(start + done)


def _open(work: Path, key: str, *, shape: tuple[int, int]) -> tuple[np.memmap, int]:
    """Open the file of vectors; returns it and the number of finished vectors in it."""
    file = work / "vectors.npy"
    done = _recorded(work, key) if file.exists() else 0
    if done:
        return np.lib.format.open_memmap(file, mode="r+"), done
    # The record is reset before the file, so no old record can refer to the new, empty file.
    _record(work, key, 0)
    # Write zeros to reserve disk space: on a full disk, writing to a mapped page kills the process.
    with replaced_file(file) as whole:
        np.save(whole, np.zeros(shape, np.float16))
    return np.lib.format.open_memmap(file, mode="r+"), 0


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
