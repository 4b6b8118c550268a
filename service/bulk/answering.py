"""Answers many queries in one thread, with the predictor and the memory that a service has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.index.protocol import batches
from service.core.prediction.predictor import Stopwatch
from service.core.types import Prediction, PredictOptions
from service.engine.loaded_bundle import LoadedBundle

_SEARCHED_TOGETHER = 256  # queries


def answer(
    loaded: LoadedBundle, queries: Sequence[str], options: PredictOptions
) -> Mapping[str, Prediction]:
    """The prediction of each different query, bit for bit that of `POST /predict`.

    All are encoded together, sorted by length; a graph whose vectors depend on their batch encodes
    them one by one, as in the service. Each thread that answers calls this by itself.
    """
    search_in_one_thread()
    predictor, view = loaded.predictor, loaded.memory.view
    distinct = list(dict.fromkeys(queries))
    vectors = predictor.encode(distinct, Stopwatch())
    predictions: dict[str, Prediction] = {}
    for batch in batches(len(distinct), _SEARCHED_TOGETHER):
        retrieved = predictor.retrieve(view, vectors[batch], options)
        for prediction in predictor.predictions(view, distinct[batch], retrieved, options):
            predictions[prediction.query] = prediction
    return predictions
