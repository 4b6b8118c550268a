"""Runs under true, predicted, missing and wrong metadata of test queries (MOGIC, Tables 6, 8, 9).

The memory is built once, with the true metadata of training rows and labels. Then the metadata of
test queries change: true, predicted or no items, dropped or replaced links, or a bank with fewer
items. Only queries whose text changes are encoded again.

Shapes: n test rows, M items, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Bools, Floats, Role, Rows
from training.checkpoints.run_json import BEST, metadata_of_run, read_run_on
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import all_linked
from training.datasets.metadata_texts import Appending, with_metadata
from training.evaluation.encode_texts import encode_texts
from training.evaluation.results import oracle_of
from training.lab.robustness import (
    METRICS,
    NO_ITEMS,
    NOT_READ,
    PREDICTED,
    TRUE,
    Condition,
    Kind,
    Measured,
    Reading,
    RunRobustness,
)
from training.models.precision import Precision
from training.models.torch_encoder import load_encoder
from training.progress import Report
from training.scoring import Scoring, open_scoring
from training.systems.oak.memory import nearest_items

MOST_PREDICTED = 5  # items per query, those most similar to its text; the paper takes 2 to 5
NOISE, BANKS = (0.2, 0.4, 0.6), (0.8, 0.6, 0.4, 0.2)

Encode = Callable[..., Floats]  # (texts, role) -> unit vectors [n, d]
Change = Callable[[csr_matrix, float, np.random.Generator], csr_matrix]
Predict = Callable[[Bools], csr_matrix]  # a bank [M] -> the items predicted from it, [n, M]
Changed = Iterator[tuple[Condition, Iterator[Scoring]]]  # condition and the scoring of each draw


def query_vectors(
    texts: Sequence[str], known: Sequence[tuple[Sequence[str], Floats]], *, encode: Encode
) -> Floats:
    """Unit vectors [n, d] of changed queries.

    `known` has (texts, vectors) of the same rows. Vectors of texts that did not change are reused.
    """
    vectors = np.empty_like(known[0][1])
    unknown = np.ones(len(texts), bool)
    for known_texts, known_vectors in known:
        same = np.array([a == b for a, b in zip(texts, known_texts, strict=True)], bool)
        vectors[same & unknown] = known_vectors[same & unknown]
        unknown &= ~same
    rows = np.flatnonzero(unknown)
    if len(rows):
        vectors[rows] = encode([texts[row] for row in rows.tolist()], role=Role.QUERY)
    return vectors


def measure_run(
    run: Path, dataset: Dataset, *, seeds: Sequence[int], precision: Precision, report: Report
) -> RunRobustness:
    """Measure a run under each condition, once per seed if random; without metadata, only once.

    `report` receives the progress of encoding and of measuring. Raises `InvalidData` and
    `InvalidInput` for a run that is not finished or on other data.
    """
    facts = read_run_on(run, dataset.name)
    settings = metadata_of_run(facts, run)
    checkpoint = run / BEST
    encoder = load_encoder(str(checkpoint))
    scoring = open_scoring(
        str(checkpoint),
        with_metadata(dataset, settings),
        folder=checkpoint,
        precision=precision,
        report=report,
        encoder=encoder,
    )
    reads: Reading = "nothing"
    changed: Changed = iter([(NOT_READ, iter([scoring]))])
    if scoring.items is not None:
        reads, changed = "items", _of_items(scoring, dataset, seeds)
    elif settings.reads_queries:
        append = Appending.of(dataset, settings)
        encode = partial(encode_texts, encoder, precision=precision)
        reads, changed = "texts", _of_texts(scoring, dataset, seeds, append, encode)
    total = 1 if reads == "nothing" else 3 + 2 * len(NOISE + BANKS) * len(seeds)
    return RunRobustness(
        run=run.name,
        system=scoring.choices.system,
        reads=reads,
        guided_by=oracle_of(facts.get("settings", {})),
        measured=tuple(_measured(changed, report, total=total)),
    )


def _measured(changed: Changed, report: Report, *, total: int) -> Iterator[Measured]:
    """The metrics of each condition; `total` is the number of draws, for the progress."""
    done = 0
    for condition, scorings in changed:
        draws: list[dict[str, float]] = []
        for scoring in scorings:
            metrics = scoring.chosen()[0].metrics
            draws.append({metric: metrics[metric] for metric in METRICS})
            done += 1
            report("conditions", done, total)
        yield Measured(condition=condition, draws=tuple(draws))


def _of_items(scoring: Scoring, dataset: Dataset, seeds: Sequence[int]) -> Changed:
    """The changed test rows of a run whose queries look up items."""
    items = scoring.items
    assert items is not None and dataset.test.metadata_of is not None
    memory = items.memory
    predict = partial(predicted_items, items.vectors, memory.keys, most=memory.attended)
    for condition, matrices in conditions(dataset.test.metadata_of, predict, seeds=seeds):
        yield condition, (scoring.with_items(all_linked(one, dataset)) for one in matrices)


def _of_texts(
    scoring: Scoring,
    dataset: Dataset,
    seeds: Sequence[int],
    append: Appending,
    encode: Encode,
) -> Changed:
    """The changed test rows of a run whose queries have metadata appended."""
    assert dataset.test.metadata_of is not None and dataset.metadata is not None
    plain, true = dataset.test.instances.texts, scoring.dataset.test.instances.texts
    vectors = query_vectors(plain, [(true, scoring.queries)], encode=encode)
    known = [(true, scoring.queries), (plain, vectors)]
    keys = encode(dataset.metadata.texts, role=Role.LABEL)
    predict = partial(predicted_items, vectors, keys, most=MOST_PREDICTED)

    def with_items(metadata_of: csr_matrix) -> Scoring:
        texts = append.to(dataset.test.instances, metadata_of).texts
        return replace(scoring, queries=query_vectors(texts, known, encode=encode))

    for condition, matrices in conditions(dataset.test.metadata_of, predict, seeds=seeds):
        yield condition, map(with_items, matrices)


def conditions(
    true_items: csr_matrix, predict: Predict, *, seeds: Sequence[int]
) -> Iterator[tuple[Condition, list[csr_matrix]]]:
    """Yield each condition and the queries' links under it, [n, M] for each draw."""
    items = true_items.shape[1]
    yield TRUE, [true_items]
    yield PREDICTED, [predict(np.ones(items, bool))]
    yield NO_ITEMS, [csr_matrix(true_items.shape, dtype=np.float32)]
    changes: dict[Kind, Change] = {"dropped": dropped, "replaced": replaced}
    for kind, change in changes.items():
        for share in NOISE:
            drawn = [change(true_items, share, _rng(seed, share)) for seed in seeds]
            yield Condition(metadata=kind, share=share), drawn
    for share in BANKS:
        banks = [bank(items, share, _rng(seed, share)) for seed in seeds]
        left = [within(true_items, banked) for banked in banks]
        yield Condition(metadata="in a bank of", share=share), left
        predicted = [predict(banked) for banked in banks]
        yield Condition(metadata="predicted in a bank of", share=share), predicted


def _rng(seed: int, share: float) -> np.random.Generator:
    return np.random.default_rng([seed, round(100 * share)])


def predicted_items(queries: Floats, keys: Floats, banked: Bools, *, most: int) -> csr_matrix:
    """The `most` items of the bank `banked` [M] with the keys [M, d] most similar to each query.

    `queries` are [n, d]. Returns ones, [n, M].
    """
    known = np.flatnonzero(banked)
    places = nearest_items(queries, keys[known], count=min(most, len(known)))  # [n, m]
    rows = np.repeat(np.arange(len(queries)), places.shape[1])
    ones = np.ones(len(rows), np.float32)
    return csr_matrix((ones, (rows, known[places.ravel()])), shape=(len(queries), len(keys)))


def dropped(metadata_of: csr_matrix, share: float, rng: np.random.Generator) -> csr_matrix:
    """Drop a `share` of the links, drawn over all texts."""
    rows, items = metadata_of.nonzero()
    kept = rng.random(len(rows)) >= share
    return _matrix(rows[kept], items[kept], metadata_of.shape)


def replaced(metadata_of: csr_matrix, share: float, rng: np.random.Generator) -> csr_matrix:
    """Point a `share` of the links to random items instead of the true ones."""
    rows, items = metadata_of.nonzero()
    wrong = rng.random(len(rows)) < share
    items = np.where(wrong, rng.integers(metadata_of.shape[1], size=len(items)), items)
    return _matrix(rows, items, metadata_of.shape)


def bank(items: int, share: float, rng: np.random.Generator) -> Bools:
    """Draw a `share` of the items at random; returns a mask [M]."""
    banked = np.zeros(items, bool)
    banked[rng.permutation(items)[: round(share * items)]] = True
    return banked


def within(metadata_of: csr_matrix, banked: Bools) -> csr_matrix:
    """Keep only the links to items of the bank `banked` [M]."""
    rows, items = metadata_of.nonzero()
    kept = banked[items]
    return _matrix(rows[kept], items[kept], metadata_of.shape)


def _matrix(rows: Rows, items: Rows, shape: tuple[int, int]) -> csr_matrix:
    """A matrix with ones at (row, item); a pair that occurs twice counts once."""
    matrix = csr_matrix((np.ones(len(rows), np.float32), (rows, items)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix
