"""BM25 over label texts: finds labels that share words with the query, without training.

Lù (2024), "BM25S: Orders of magnitude faster lexical search via eager sparse scoring". Texts are
lower-cased and split into runs of letters and digits. There is no stemming and no stopword list,
and words of one letter count: keywords are short, and each of their words may matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import bm25s
import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Share
from training.hardware import versions
from training.lab.peers import PeerTrainingData
from training.lab.peers.ranking import Ranked, Ranking

WORD = r"(?u)\b\w+\b"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """The library's defaults: Lucene's variant, k1 and b.

    Other variants are not offered, since they also score texts that share no word.
    """

    variant: Literal["lucene", "robertson", "atire"] = "lucene"
    k1: Annotated[float, Field(ge=0.0)] = 1.5
    b: Share = 0.75


def train(data: PeerTrainingData, settings: Settings, *, folder: Path) -> Ranking:
    """Index the label texts."""
    index = bm25s.BM25(method=settings.variant, k1=settings.k1, b=settings.b)
    index.index(words(data.label_texts), show_progress=False)
    labels = len(data.label_texts)

    def rank(texts: Sequence[str], top_k: int) -> Ranked:
        columns, scores = index.retrieve(
            words(texts), k=min(top_k, labels), show_progress=False, return_as="tuple"
        )
        ranked = np.full((len(texts), top_k), -1, np.int64)
        # Labels that share no word with the text score 0; the library fills the row with them.
        ranked[:, : columns.shape[1]] = np.where(scores > 0.0, columns, -1)
        return ranked

    return Ranking(method="label words", rank=rank, libraries=versions("bm25s", "numpy"))


def words(texts: Sequence[str]) -> Any:
    """The words of each text, as the library's table of ids."""
    return bm25s.tokenize(
        list(texts),
        lower=True,
        token_pattern=WORD,
        stopwords=None,
        stemmer=None,
        show_progress=False,
    )
