"""A bundle and a novel split as vectors, made as the service makes them.

Shapes: U novel labels, N instances, S seen labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.sparse import csr_matrix

from service.core.bundle.bundle import Bundle
from service.core.encoding.encoder import Encoder, OnnxEncoder, encode_all
from service.core.encoding.representer import ItemTexts, Representer, open_representer
from service.core.errors import InvalidInput
from service.core.types import Floats, Role
from training.datasets.novel_split import NovelSplit
from training.experiments.novel_evaluation import (
    IRENE,
    METHODS,
    Combined,
    NovelEvaluation,
    NovelVectors,
)
from training.progress import Report

_CHUNK = 32  # labels that a thread represents at a time


def open_novel_evaluation(
    bundle: Bundle,
    split: NovelSplit,
    *,
    beside: Mapping[str, Bundle] | None = None,
    threads: int,
    report: Report,
) -> NovelEvaluation:
    """Encode a split for a bundle, and C(u) by the combiners of those `beside` it, too.

    Raises `InvalidInput` when a bundle was made from other labels, and where one beside it has
    another encoder, no combiner, or the name of a method.
    """
    beside = beside or {}
    _check_labels(bundle, split)
    for name, other in beside.items():
        _check_labels(other, split)
        _check_beside(name, other, bundle)
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    novel = split.everything.labels.texts[split.facts.seen :]
    revealed = split.revealed()

    def encoded(what: str, texts: Sequence[str], role: Role) -> Floats:
        return _encoded(encoder, texts, role, what, threads, report)

    def combined() -> Iterator[tuple[str, Combined]]:
        zero_shot: list[ItemTexts] = [[(Role.LABEL, text)] for text in novel]
        one_shot = [
            [*item, (Role.QUERY, query)] for item, query in zip(zero_shot, revealed, strict=True)
        ]
        for name, own in {IRENE: bundle, **beside}.items():
            if own.novel is not None:
                made = open_representer(encoder, own)
                zero = _represented(made, zero_shot, f"{name}, zero-shot", threads, report)
                one = _represented(made, one_shot, f"{name}, one-shot", threads, report)
                yield name, Combined(zero_shot=zero, one_shot=one)

    keys = np.asarray(bundle.keys, np.float32)
    votes = np.ones(len(bundle.indices), np.float32)
    return NovelEvaluation(
        split=split,
        predictor=bundle.manifest.predictor,
        vectors=NovelVectors(
            instances=keys[: bundle.instances],
            clicks=csr_matrix(
                (votes, bundle.indices, bundle.indptr), shape=(bundle.instances, bundle.labels)
            ),
            seen=keys[bundle.instances :],
            texts=encoded("encode novel labels", novel, Role.LABEL),
            revealed=encoded("encode revealed queries", revealed, Role.QUERY),
            queries=encoded("encode test rows", split.everything.test.instances.texts, Role.QUERY),
            combined=dict(combined()),
        ),
    )


def _check_labels(bundle: Bundle, split: NovelSplit) -> None:
    if list(bundle.label_ids) != list(split.seen.labels.uids):
        raise InvalidInput(
            f"bundle {bundle.manifest.name} was made from {bundle.manifest.dataset!r}; its labels"
            f" are not the seen ones of {split.everything.name!r}"
        )


def _check_beside(name: str, other: Bundle, bundle: Bundle) -> None:
    if name in METHODS:
        raise InvalidInput(f"{name!r} is a method already; name what stands beside it otherwise")
    if other.novel is None:
        raise InvalidInput(f"bundle {other.manifest.name} ({name!r}) has no combiner")
    if other.manifest.encoder.fingerprint != bundle.manifest.encoder.fingerprint:
        raise InvalidInput(
            f"bundle {other.manifest.name} ({name!r}) has another encoder than"
            f" {bundle.manifest.name}"
        )


def _encoded(
    encoder: Encoder, texts: Sequence[str], role: Role, what: str, threads: int, report: Report
) -> Floats:
    return encode_all(
        encoder,
        texts,
        role=role,
        threads=threads,
        progress=lambda done: report(what, done, len(texts)),
    )


def _represented(
    representer: Representer, items: Sequence[ItemTexts], what: str, threads: int, report: Report
) -> Floats:
    """The labels' own rows, [U, d]."""
    chunks = [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]
    rows: list[Floats] = []
    with ThreadPoolExecutor(threads) as pool:
        for encoded_items in pool.map(representer.encode, chunks):
            rows += [encoded.rows[0].astype(np.float32) for encoded in encoded_items]
            report(what, len(rows), len(items))
    return np.stack(rows)
