"""Rows of a bundle that are hidden one by one, so that their own texts can be asked.

Words that only the hidden row has are then unknown, as those of a new query. Only rows that the
encoder has not trained on are hidden: for others, answers are better than for any new query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor, QueryCache
from service.core.prediction.reranking.reranker import open_reranker
from training.checkpoints.trained_texts import TrainedTexts

HIDDEN_ROWS = 1_000  # one row is a tenth of a point of P@1
_CACHED = 8 * HIDDEN_ROWS  # vectors of texts that are asked in several ways


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenRows:
    """Instance rows of a bundle, drawn at random, and what asks their texts."""

    bundle: Bundle
    view: View
    encoder: OnnxEncoder
    predictor: Predictor
    rows: Sequence[int]

    @classmethod
    def of(cls, bundle: Bundle, trained: TrainedTexts) -> HiddenRows:
        """Draw from the rows with a label that the encoder has not trained on.

        These are at most `HIDDEN_ROWS`.
        """
        facts, texts = bundle.manifest, bundle.instance_texts
        encoder = OnnxEncoder(bundle.folder, facts.encoder)
        labelled = np.diff(bundle.indptr)[: len(texts)] > 0
        labelled[bundle.aliases] = False  # they are texts of labels, not queries
        unseen = np.flatnonzero(trained.unseen(list(texts)) & labelled)
        return cls(
            bundle=bundle,
            view=KnowledgeMemory(bundle).view,
            encoder=encoder,
            predictor=Predictor(
                encoder,
                tau=facts.predictor.tau,
                cache=QueryCache(_CACHED),
                reranker=open_reranker(bundle),
            ),
            rows=np.random.default_rng(0).permutation(unseen)[:HIDDEN_ROWS].tolist(),
        )

    def text(self, row: int) -> str:
        """Return the text of a row."""
        return self.bundle.instance_texts[row]

    def without(self, row: int) -> View:
        """Return the memory without a row."""
        return replace(self.view, base=self.view.base.with_tombstones([row]))

    def labels_of(self, row: int) -> Sequence[int]:
        """Return the columns that a row votes for."""
        columns: Sequence[int] = self.view.votes(np.array([row]))[0].tolist()
        return columns
