"""Ask a predictor one query, and compute the similarities that its answer must contain."""

import numpy as np

from service.core.encoding.encoder import Encoder, encode
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import Keyword, PredictOptions, Role
from tests.support.tiny.bundles import INSTANCES, LABELS

ALL = len(INSTANCES) + len(LABELS)  # depth that retrieves all rows of the tiny bundle


def ask(predictor: Predictor, view: View, query: str, **options: object) -> tuple[Keyword, ...]:
    chosen = {"top_k": 50, "depth": ALL} | options
    return predictor.predict(view, [query], PredictOptions(**chosen)).predictions[0].keywords


def scores(keywords: tuple[Keyword, ...]) -> dict[str, float]:
    return {keyword.id: keyword.score for keyword in keywords}


def similarity_to(query: str, texts: list[str], encoder: Encoder) -> np.ndarray:
    """Return the query's inner products with the texts' keys, rounded to fp16 as when stored."""
    keys = encode(encoder, texts, role=Role.LABEL).astype(np.float16).astype(np.float64)
    return keys @ encode(encoder, [query], role=Role.QUERY)[0]
