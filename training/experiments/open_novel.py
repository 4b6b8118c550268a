"""Encodes a novel split with a bundle, as the service encodes it.

Shapes: U novel labels, N instances, S seen labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.sparse import csr_matrix

from service.core.bundle.bundle import Bundle
from service.core.encoding.encoder import Encoder, OnnxEncoder, encode_all, open_query_encoder
from service.core.encoding.representer import ItemTexts, Representer, open_representer
from service.core.errors import InvalidInput
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.many_queries import LabelOrder
from service.core.prediction.reranking.reranker import open_reranker
from service.core.types import Floats, PredictOptions, Role
from training.datasets.novel_split import NovelSplit
from training.evaluation.evaluation import Evaluation
from training.evaluation.metrics import labels_to_rank
from training.experiments.novel_evaluation import (
    IRENE,
    METHODS,
    Combined,
    NovelEvaluation,
    NovelVectors,
    Setting,
)
from training.experiments.posted_labels import view_with_posted_labels
from training.progress import Report

_CHUNK = 32  # labels that a thread represents at a time


def open_novel_evaluation(
    bundle: Bundle,
    split: NovelSplit,
    *,
    ablations: Mapping[str, Bundle] | None = None,
    threads: int,
    report: Report,
) -> NovelEvaluation:
    """Encode a split with a bundle; `ablations` are bundles whose combiners are compared with it.

    Raises `InvalidInput` if a bundle was built from other labels, and if an ablation has another
    encoder, no combiner, or the name of a method.
    """
    ablations = ablations or {}
    _check_labels(bundle, split)
    for name, ablation in ablations.items():
        _check_labels(ablation, split)
        _check_ablation(name, ablation, bundle)
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    query_encoder = open_query_encoder(bundle, encoder)

    def encoded(stage: str, texts: Sequence[str], role: Role, encoder: Encoder = encoder) -> Floats:
        return _encoded(encoder, texts, role, stage, threads, report)

    keys, view = np.asarray(bundle.keys, np.float32), KnowledgeMemory(bundle).view
    novel = split.everything.labels.texts[split.facts.seen :]
    posted = encoded("encode revealed queries", split.revealed(), Role.QUERY)
    test = split.everything.test.instances.texts
    queries = encoded("encode test rows", test, Role.QUERY, query_encoder)
    vectors = NovelVectors(
        instances=keys[: bundle.instances],
        clicks=_clicks(bundle),
        seen=keys[bundle.instances :],
        texts=encoded("encode novel labels", novel, Role.LABEL),
        revealed=view.fused(posted).vectors,  # as they are searched, with items if there are any
        queries=view.fused(queries).vectors,
        combined=_combined({IRENE: bundle, **ablations}, split, encoder, threads, report),
    )
    return NovelEvaluation(
        split=split,
        predictor=bundle.manifest.predictor,
        vectors=vectors,
        reranked=_reranked(bundle, split, vectors, posted, report),
    )


def _reranked(
    bundle: Bundle, split: NovelSplit, vectors: NovelVectors, posted: Floats, report: Report
) -> dict[Setting, Evaluation]:
    """The memory with the novel labels, by setting; none if the bundle does not rank twice.

    `posted` [U, d] are the vectors of the labels' queries, which the memory fuses with its items.
    """
    reranker, combined = open_reranker(bundle), vectors.combined.get(IRENE)
    if reranker is None:
        return {}
    zero_shot = vectors.texts if combined is None else combined.zero_shot
    one_shot = vectors.texts if combined is None else combined.one_shot
    views: dict[Setting, View] = {
        "zero-shot": view_with_posted_labels(bundle, split, zero_shot, None),
        "one-shot": view_with_posted_labels(bundle, split, one_shot, posted),
    }
    test = split.everything.test
    options = PredictOptions(top_k=labels_to_rank(test.filtered), exact=True)
    return {
        setting: Evaluation(
            view=view,
            tau=bundle.manifest.predictor.tau,
            order=LabelOrder.of(split.everything.labels.uids),
            dataset=split.everything,
            vectors=vectors.queries,
            options=bundle.manifest.options(options),
            report=report,
            reranker=reranker,
        )
        for setting, view in views.items()
    }


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
) -> dict[str, Combined]:
    """C(u) of the novel labels by the combiner of each bundle that has one."""
    novel = split.everything.labels.texts[split.facts.seen :]
    zero_shot: list[ItemTexts] = [[(Role.LABEL, text)] for text in novel]
    one_shot = [
        [*item, (Role.QUERY, query)]
        for item, query in zip(zero_shot, split.revealed(), strict=True)
    ]
    combined = {}
    for name, bundle in bundles.items():
        if bundle.novel is not None:
            representer = open_representer(encoder, bundle)
            combined[name] = Combined(
                zero_shot=_represented(
                    representer, zero_shot, f"{name}, zero-shot", threads, report
                ),
                one_shot=_represented(representer, one_shot, f"{name}, one-shot", threads, report),
            )
    return combined


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


def _encoded(
    encoder: Encoder, texts: Sequence[str], role: Role, stage: str, threads: int, report: Report
) -> Floats:
    return encode_all(
        encoder,
        texts,
        role=role,
        threads=threads,
        progress=lambda done: report(stage, done, len(texts)),
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
