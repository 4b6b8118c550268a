"""`python -m service check`: verify a bundle without serving it."""

from __future__ import annotations

from pathlib import Path

from service.command_line import open_console
from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder, open_query_encoder
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.prediction.reranking.reranker import open_reranker
from service.core.types import PredictOptions


def check(*, bundle: Path) -> int:
    """Verify the checksum of every file of a bundle and answer one query from it.

    Parameters
    ----------
    bundle
        The bundle's folder.
    """
    opened = open_bundle(bundle)
    facts = opened.manifest
    encoder = open_query_encoder(opened, OnnxEncoder(bundle, facts.encoder))
    predictor = Predictor(encoder, tau=facts.predictor.tau, reranker=open_reranker(opened))
    query, options = opened.label_texts[0], facts.options(PredictOptions(top_k=1))
    answer = predictor.predict(KnowledgeMemory(opened).view, [query], options)
    keywords = answer.predictions[0].keywords
    open_console().print(
        f"{bundle}: format {facts.version}, {len(facts.files)} files verified;"
        f" {facts.memory.instances:,} instances and {facts.memory.labels:,} labels of"
        f" {facts.dataset}; encoder {facts.encoder.name}, {facts.encoder.quantization},"
        f" d={facts.encoder.dimension}; {query!r} -> {keywords[0].text if keywords else None!r}",
        soft_wrap=True,
    )
    return 0
