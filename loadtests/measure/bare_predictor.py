"""The predictor without the service: the baseline for the cost of HTTP, JSON and queueing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import Encoder, OnnxEncoder, open_query_encoder
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions


@dataclass(frozen=True, kw_only=True)
class BarePredictor:
    """The core's predictor as the engine calls it, in this process and thread, without a cache."""

    encoder: Encoder  # of queries
    predictor: Predictor
    view: View
    options: PredictOptions

    @classmethod
    def open(cls, bundle: Path) -> BarePredictor:
        """Open a bundle with the inference settings that it stores."""
        search_in_one_thread()
        opened = open_bundle(bundle)
        facts = opened.manifest
        encoder = open_query_encoder(opened, OnnxEncoder(bundle, facts.encoder))
        return cls(
            encoder=encoder,
            predictor=Predictor(encoder, tau=facts.predictor.tau),
            view=KnowledgeMemory(opened).view,
            options=PredictOptions(
                memorization=facts.predictor.memorization, depth=facts.predictor.depth
            ),
        )

    def seconds(self, query: str) -> float:
        """Answer one query; returns how long that took."""
        start = perf_counter()
        self.predictor.predict(self.view, [query], self.options)
        return perf_counter() - start
