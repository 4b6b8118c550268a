"""The keywords of one bundle for many queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from service.bulk.answering import answer
from service.bulk.memory import open_memory
from service.comparison.measures import Ranking
from service.core.index.protocol import batches
from service.core.types import PredictOptions
from service.settings import EngineSettings

_ANSWERED_TOGETHER = 2_048  # queries


def rankings_of(
    bundle: Path,
    queries: Sequence[str],
    *,
    k: int,
    settings: EngineSettings,
    progress: Callable[[int], None],
) -> dict[str, Ranking]:
    """The k best keywords of each query, with the bundle's own depth and memorization.

    `progress` is called with the number of queries that are answered since its last call.
    """
    loaded = open_memory(bundle, None, settings, until=0)
    options = loaded.options(PredictOptions(top_k=k))
    parts = [queries[part] for part in batches(len(queries), _ANSWERED_TOGETHER)]
    rankings: dict[str, Ranking] = {}
    with ThreadPoolExecutor(settings.threads) as pool:
        for predictions in pool.map(lambda part: answer(loaded, part, options), parts):
            progress(len(predictions))
            rankings.update((text, found.keywords) for text, found in predictions.items())
    return rankings
