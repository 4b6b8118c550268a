"""How much oracle and OAK need true metadata: MOGIC's Tables 6, 8 and 9 on the test queries.

The memory is made once, with the true metadata of training rows and labels. What changes is that of
the test queries: true, predicted or none, with links dropped or replaced, with fewer items known.
Only queries whose text changes are encoded again.

Shapes: n test rows, M items, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Bools, Floats, Role
from training.checkpoints.run_json import BEST, metadata_of_run, read_run_on
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import all_linked
from training.datasets.metadata_noise import bank, dropped, replaced, within
from training.datasets.metadata_texts import Appending, with_metadata
from training.evaluation.encode_texts import encode_texts
from training.evaluation.robustness import (
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
from training.evaluation.run_facts import oracle_of
from training.experiments.sweeps import Scoring, open_scoring
from training.models.precision import Precision
from training.models.torch_encoder import load_encoder
from training.progress import Report
from training.systems.oak.memory import nearest_items

MOST_PREDICTED = 5  # items a query, the most similar to its text; the paper takes 2 to 5
NOISE, BANKS = (0.2, 0.4, 0.6), (0.8, 0.6, 0.4, 0.2)

Encode = Callable[..., Floats]  # texts and their role to unit vectors [n, d]
Change = Callable[[csr_matrix, float, np.random.Generator], csr_matrix]
Predict = Callable[[Bools], csr_matrix]  # the items of a bank [M] that are predicted, [n, M]
Changed = Iterator[tuple[Condition, Iterator[Scoring]]]  # the test rows as each draw leaves them


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryVectors:
    """Vectors of changed queries; `known` are (texts, vectors) of the same rows, which are kept."""

    encode: Encode
    known: tuple[tuple[Sequence[str], Floats], ...]

    def of(self, texts: Sequence[str]) -> Floats:
        """Unit vectors [n, d] of all rows; a row with a known text takes its vector."""
        vectors = np.empty_like(self.known[0][1])
        unknown = np.ones(len(texts), bool)
        for known_texts, known_vectors in self.known:
            same = np.array([a == b for a, b in zip(texts, known_texts, strict=True)], bool)
            vectors[same & unknown] = known_vectors[same & unknown]
            unknown &= ~same
        rows = np.flatnonzero(unknown)
        if len(rows):
            changed = [texts[row] for row in rows.tolist()]
            vectors[rows] = self.encode(changed, role=Role.QUERY)
        return vectors


def measure_run(
    run: Path, dataset: Dataset, *, seeds: Sequence[int], precision: Precision, report: Report
) -> RunRobustness:
    """A run under each condition, those at random with each seed; without metadata, measured once.

    `report` is told of the texts that are encoded and of the draws that are measured. Raises
    `InvalidData` and `InvalidInput` for a run that is not finished or on other data.
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
    """The metrics of each condition; `total` draws are to come."""
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
    """The test rows of a run whose queries look their items up."""
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
    """The test rows of a run whose queries have metadata appended."""
    assert dataset.test.metadata_of is not None and dataset.metadata is not None
    plain, true = dataset.test.instances.texts, scoring.dataset.test.instances.texts
    known = QueryVectors(encode=encode, known=((true, scoring.queries),))
    vectors = known.of(plain)
    queries = replace(known, known=(*known.known, (plain, vectors)))
    keys = encode(dataset.metadata.texts, role=Role.LABEL)
    predict = partial(predicted_items, vectors, keys, most=MOST_PREDICTED)

    def with_items(metadata_of: csr_matrix) -> Scoring:
        texts = append.to(dataset.test.instances, metadata_of).texts
        return replace(scoring, queries=queries.of(texts))

    for condition, matrices in conditions(dataset.test.metadata_of, predict, seeds=seeds):
        yield condition, map(with_items, matrices)


def conditions(
    true_items: csr_matrix, predict: Predict, *, seeds: Sequence[int]
) -> Iterator[tuple[Condition, list[csr_matrix]]]:
    """Each condition and what the test queries then have, [n, M], once for each draw."""
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
    """The `most` items of those `banked` [M] whose keys [M, d] are most similar to each query.

    `queries` are [n, d]; returns ones, [n, M].
    """
    known = np.flatnonzero(banked)
    places = nearest_items(queries, keys[known], count=min(most, len(known)))  # [n, m]
    rows = np.repeat(np.arange(len(queries)), places.shape[1])
    ones = np.ones(len(rows), np.float32)
    return csr_matrix((ones, (rows, known[places.ravel()])), shape=(len(queries), len(keys)))
