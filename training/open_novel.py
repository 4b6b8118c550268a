"""A bundle and a novel split as vectors, made as the service makes them.

Shapes: U novel labels, N instances, S seen labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.sparse import csr_matrix

from service.core.bundle import Bundle
from service.core.encoder import Encoder, OnnxEncoder, encode_all
from service.core.errors import InvalidInput
from service.core.representation import ItemTexts, Representer, open_representer
from service.core.types import Floats, Role
from training.novel_evaluation import NovelEvaluation, NovelVectors
from training.novel_split import NovelSplit
from training.progress import Report

_CHUNK = 32  # labels that a thread represents at a time


def open_novel_evaluation(
    bundle: Bundle, split: NovelSplit, *, threads: int, report: Report
) -> NovelEvaluation:
    """Encode a split for a bundle; raises `InvalidInput` when it was made from other labels."""
    if list(bundle.label_ids) != list(split.seen.labels.uids):
        raise InvalidInput(
            f"bundle {bundle.manifest.name} was made from {bundle.manifest.dataset!r}; its labels"
            f" are not the seen ones of {split.everything.name!r}"
        )
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    novel = split.everything.labels.texts[split.facts.seen :]
    revealed = split.revealed()

    def encoded(what: str, texts: Sequence[str], role: Role) -> Floats:
        return _encoded(encoder, texts, role, what, threads, report)

    def represented(what: str, items: Sequence[ItemTexts]) -> Floats | None:
        if bundle.novel is None:
            return None
        return _represented(representer, items, what, threads, report)

    representer = open_representer(encoder, bundle)
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
            zero_shot=represented("represent zero-shot", [[(Role.LABEL, text)] for text in novel]),
            one_shot=represented(
                "represent one-shot",
                [
                    [(Role.LABEL, text), (Role.QUERY, query)]
                    for text, query in zip(novel, revealed, strict=True)
                ],
            ),
        ),
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
        for made in pool.map(representer.make, chunks):
            rows += [own.rows[0].astype(np.float32) for own in made]
            report(what, len(rows), len(items))
    return np.stack(rows)
