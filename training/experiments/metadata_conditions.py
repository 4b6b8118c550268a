"""How much oracle and OAK need true metadata: MOGIC's Tables 6, 8 and 9 on the test queries.

The memory is made once, with the true metadata of training rows and labels. What changes is that of
the test queries: true, predicted or none, with links dropped or replaced, with fewer items known.

Shapes: n test rows, M items, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Bools, Floats, Role
from training.checkpoints.run_json import BEST, metadata_of_run, read_run_on
from training.datasets.dataset import Dataset, Texts
from training.datasets.metadata_links import all_linked
from training.datasets.metadata_noise import bank, dropped, replaced, within
from training.datasets.metadata_texts import with_metadata
from training.evaluation.encode_texts import encode_texts
from training.experiments.query_items import QueryItems
from training.experiments.sweeps import Scoring, open_scoring
from training.models.precision import Precision
from training.models.torch_encoder import load_encoder

PREDICTED = 5  # items a query, the most similar to its text; the paper takes 2 to 5
NOISE, BANKS = (0.2, 0.4, 0.6), (0.8, 0.6, 0.4, 0.2)
SEED = 13
BANK, PREDICTED_BANK = "in a bank of", "predicted in a bank of"

Encode = Callable[..., Floats]  # texts and their role to unit vectors [n, d]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What the test queries know: `metadata` is its kind, `share` how much of it is changed."""

    metadata: str
    share: float = 0.0

    def __str__(self) -> str:
        """Such as "dropped 20 %"."""
        return (
            f"{self.metadata} {self.share:.0%}".replace("%", " %") if self.share else self.metadata
        )


TRUE, ALONE = Condition(metadata="true"), Condition(metadata="not read")
PREDICTED_ITEMS, NO_ITEMS = Condition(metadata="predicted"), Condition(metadata="none")


def measure_run(
    run: Path, dataset: Dataset, *, precision: Precision
) -> Iterator[tuple[Condition, Mapping[str, float]]]:
    """The metrics, in percent, of a run under each condition; of one that reads no metadata, once.

    Raises `InvalidData` and `InvalidInput` for a run that is not finished or on other data.
    """
    settings = metadata_of_run(read_run_on(run, dataset.name), run)
    checkpoint = run / BEST
    fused = with_metadata(dataset, settings)
    scoring = open_scoring(str(checkpoint), fused, folder=checkpoint, precision=precision)
    if scoring.items is not None:
        yield from _of_lookup(scoring, scoring.items, dataset)
        return
    if settings.append not in ("queries", "both"):
        yield ALONE, next(scoring.results())[0].metrics
        return
    yield TRUE, next(scoring.results())[0].metrics
    encode = partial(encode_texts, load_encoder(str(checkpoint)), precision=precision)
    for condition, metadata_of in conditions(dataset, encode):
        test = replace(dataset.test, metadata_of=metadata_of)
        texts = with_metadata(replace(dataset, test=test), settings).test.instances.texts
        changed = replace(scoring, queries=encode(texts, role=Role.QUERY))
        yield condition, next(changed.results())[0].metrics


def _of_lookup(
    scoring: Scoring, items: QueryItems, dataset: Dataset
) -> Iterator[tuple[Condition, Mapping[str, float]]]:
    """The metrics of a run whose queries look their items up, as they are served and otherwise."""
    assert dataset.test.metadata_of is not None
    memory = items.memory
    similarities = items.vectors @ memory.keys.T
    everything = noisy(
        dataset.test.metadata_of, similarities, most=memory.attended, items=len(memory.keys)
    )
    for condition, metadata_of in ((TRUE, dataset.test.metadata_of), *everything):
        changed = scoring.with_items(all_linked(metadata_of, dataset))
        yield condition, next(changed.results())[0].metrics


def conditions(dataset: Dataset, encode: Encode) -> Iterator[tuple[Condition, csr_matrix]]:
    """Each condition but the true metadata, and what the test queries then have, [n, M]."""
    true_items, items = dataset.test.metadata_of, dataset.metadata
    assert true_items is not None and items is not None
    similarities = _similarities(dataset.test.instances, items, encode)
    return noisy(true_items, similarities, most=PREDICTED, items=len(items))


def noisy(
    true_items: csr_matrix, similarities: Floats, *, most: int, items: int
) -> Iterator[tuple[Condition, csr_matrix]]:
    """Each condition but the true items [n, M], from similarities [n, M]; `most` are predicted."""
    predicted = predicted_items(similarities, np.ones(items, bool), most=most)
    yield PREDICTED_ITEMS, predicted
    yield NO_ITEMS, csr_matrix(true_items.shape, dtype=np.float32)
    for kind, change in (("dropped", dropped), ("replaced", replaced)):
        for share in NOISE:
            yield Condition(metadata=kind, share=share), change(true_items, share, _rng(share))
    for share in BANKS:
        banked = bank(items, share, _rng(share))
        yield Condition(metadata=BANK, share=share), within(true_items, banked)
        kept = predicted_items(similarities, banked, most=most)
        yield Condition(metadata=PREDICTED_BANK, share=share), kept


def _rng(share: float) -> np.random.Generator:
    return np.random.default_rng([SEED, round(100 * share)])


def predicted_items(similarities: Floats, banked: Bools, *, most: int = PREDICTED) -> csr_matrix:
    """The `most` most similar items of those `banked` [M] for each text, as ones [n, M]."""
    known = np.where(banked, similarities, -np.inf)
    count = min(most, int(banked.sum()))
    nearest = np.argpartition(-known, count - 1, axis=1)[:, :count] if count else known[:, :0]
    rows = np.repeat(np.arange(len(known)), count)
    ones = np.ones(len(rows), np.float32)
    return csr_matrix((ones, (rows, nearest.ravel().astype(np.int64))), shape=known.shape)


def _similarities(texts: Texts, items: Texts, encode: Encode) -> Floats:
    """<E(x), E(a)> of test texts and items without metadata, [n, M]."""
    queries = encode(texts.texts, role=Role.QUERY)
    return queries @ encode(items.texts, role=Role.LABEL).T
