"""Encodes a novel split with a bundle, in the same way as the service.

Shapes: U novel labels, N instances, S seen labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.sparse import csr_matrix

from service.core.bundle.bundle import Bundle
from service.core.changes import PutLabel
from service.core.encoding.encoder import Encoder, OnnxEncoder, encode_all
from service.core.encoding.representer import ItemTexts, Representer, open_representer
from service.core.errors import InvalidInput
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.options import complete_options
from service.core.prediction.predictor import Predictor
from service.core.prediction.reranking.reranker import open_reranker
from service.core.types import Floats, NewLabel, Role
from training.evaluation.evaluation import Evaluation
from training.evaluation.metrics import labels_to_rank
from training.lab.novel_evaluation import (
    IRENE,
    METHODS,
    SETTINGS,
    NovelEvaluation,
    NovelVectors,
    Setting,
)
from training.lab.novel_split import NovelSplit
from training.progress import Report

_CHUNK = 32  # labels that a thread represents in one step


def open_novel_evaluation(
    bundle: Bundle,
    split: NovelSplit,
    *,
    ablations: Mapping[str, Bundle] | None = None,
    threads: int,
    report: Report,
) -> NovelEvaluation:
    """Encode a split with a bundle; `ablations` are bundles whose combiners are compared.

    Raises `InvalidInput` if a bundle was built from other labels, or if an ablation has another
    encoder, no combiner, or the name of a method.
    """
    ablations = ablations or {}
    _check_labels(bundle, split)
    for name, ablation in ablations.items():
        _check_labels(ablation, split)
        _check_ablation(name, ablation, bundle)
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)

    def encoded(stage: str, texts: Sequence[str], role: Role) -> Floats:
        return encode_all(
            encoder,
            texts,
            role=role,
            threads=threads,
            progress=lambda done: report(stage, done, len(texts)),
        )

    keys, view = bundle.keys[:].astype(np.float32), KnowledgeMemory(bundle).view
    novel = split.everything.labels.texts[split.facts.seen :]
    posted = encoded("encode revealed queries", split.revealed(), Role.QUERY)
    queries = encoded("encode test rows", split.everything.test.instances.texts, Role.QUERY)
    vectors = NovelVectors(
        instances=keys[: bundle.instances],
        clicks=_clicks(bundle),
        seen=keys[bundle.instances :],
        texts=encoded("encode novel labels", novel, Role.LABEL),
        revealed=view.fused(posted).vectors,  # fused with items, if any, as in the service
        queries=view.fused(queries).vectors,
        instance_texts=list(bundle.instance_texts),
        combined=_combined({IRENE: bundle, **ablations}, split, encoder, threads, report),
    )
    return NovelEvaluation(
        split=split,
        predictor=bundle.manifest.predictor,
        vectors=vectors,
        reranked=_reranked(bundle, encoder, split, vectors, posted, report),
    )


def _reranked(
    bundle: Bundle,
    encoder: Encoder,
    split: NovelSplit,
    vectors: NovelVectors,
    posted: Floats,
    report: Report,
) -> dict[Setting, Evaluation]:
    """The memory with the novel labels, by setting; empty if the bundle has no reranker.

    `posted` [U, d] are the vectors of the labels' queries, which the memory fuses with its items.
    """
    reranker = open_reranker(bundle)
    if reranker is None:
        return {}
    top_k = labels_to_rank(split.everything.test.filtered)
    options = complete_options(bundle.manifest, top_k=top_k, exact=True)
    predictor = Predictor(encoder, tau=bundle.manifest.predictor.tau, reranker=reranker)
    found = {}
    for setting in SETTINGS:
        combined = vectors.combined.get(IRENE)
        keys = vectors.texts if combined is None else combined[setting]
        queries = posted if setting == "one-shot" else None
        found[setting] = Evaluation(
            view=view_with_posted_labels(bundle, split, keys, queries),
            predictor=predictor,
            dataset=split.everything,
            texts=split.everything.test.instances.texts,
            vectors=vectors.queries,
            options=options,
            report=report,
        )
    return found


def _clicks(bundle: Bundle) -> csr_matrix:
    """Y of the bundle's instances, [N, S]."""
    votes = np.ones(len(bundle.indices), np.float32)
    shape = (bundle.instances, bundle.labels)
    return csr_matrix((votes, bundle.indices, bundle.indptr), shape=shape)


def _combined(
    bundles: Mapping[str, Bundle],
    split: NovelSplit,
    encoder: Encoder,
    threads: int,
    report: Report,
) -> dict[str, dict[Setting, Floats]]:
    """C(u) of the novel labels by each bundle's combiner; bundles without one are left out."""
    novel = split.everything.labels.texts[split.facts.seen :]
    items: dict[Setting, list[ItemTexts]] = {
        "zero-shot": [[(Role.LABEL, text)] for text in novel],
        "one-shot": [
            [(Role.LABEL, text), (Role.QUERY, query)]
            for text, query in zip(novel, split.revealed(), strict=True)
        ],
    }
    representers = {
        name: open_representer(encoder, bundle)
        for name, bundle in bundles.items()
        if bundle.novel is not None
    }
    return {
        name: {
            setting: _represented(one, items[setting], f"{name}, {setting}", threads, report)
            for setting in SETTINGS
        }
        for name, one in representers.items()
    }


def _check_labels(bundle: Bundle, split: NovelSplit) -> None:
    if list(bundle.label_ids) != list(split.seen.labels.uids):
        raise InvalidInput(
            f"bundle {bundle.manifest.name} was built from {bundle.manifest.dataset!r}; its labels"
            f" are not the seen labels of {split.everything.name!r}"
        )


def _check_ablation(name: str, ablation: Bundle, bundle: Bundle) -> None:
    if name in METHODS:
        raise InvalidInput(f"{name!r} is the name of a method; give the ablation another name")
    if ablation.novel is None:
        raise InvalidInput(f"bundle {ablation.manifest.name} ({name!r}) has no combiner")
    if ablation.manifest.encoder.fingerprint != bundle.manifest.encoder.fingerprint:
        raise InvalidInput(
            f"bundle {ablation.manifest.name} ({name!r}) has another encoder than"
            f" {bundle.manifest.name}"
        )


def _represented(
    representer: Representer, items: Sequence[ItemTexts], stage: str, threads: int, report: Report
) -> Floats:
    """The key of each label, [U, d]."""
    chunks = [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]
    rows: list[Floats] = []
    with ThreadPoolExecutor(threads) as pool:
        for encoded_items in pool.map(representer.encode, chunks):
            rows += [encoded.rows[0].astype(np.float32) for encoded in encoded_items]
            report(stage, len(rows), len(items))
    return np.stack(rows)


def view_with_posted_labels(
    bundle: Bundle, split: NovelSplit, keys: Floats, queries: Floats | None
) -> View:
    """The memory after all novel labels were posted, in the order of the split's columns.

    `keys` [U, d] are the vectors of the labels' rows; `queries` [U, d] the vectors of their
    queries, or None if the labels are posted without queries.
    """
    labels, revealed = split.everything.labels, split.revealed()
    changes = []
    for place, column in enumerate(split.novel.tolist()):
        label = NewLabel(
            id=labels.uids[column],
            text=labels.texts[column],
            queries=() if queries is None else (revealed[place],),
        )
        rows = [keys[place]] if queries is None else [keys[place], queries[place]]
        vectors = np.stack(rows).astype(np.float16)
        changes.append(PutLabel(sequence=place + 1, label=label, vectors=vectors))
    return KnowledgeMemory(bundle).apply(changes)
