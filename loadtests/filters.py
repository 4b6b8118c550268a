"""`python -m loadtests.filters`: recall, completeness and time of filtered queries.

Each label gets three numbers from 0 to 1: a random one, and its rank by similarity to one query,
from the nearest label on and from the farthest. The queries are that one's neighbors, so filters on
these numbers leave labels at random, near the queries, or far from them. Runs in one thread of this
process, without a server. Writes filters.json and filters.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np

from loadtests.bare_predictor import RECALL, BarePredictor, cpu_times, measure_recall
from loadtests.harness import Scenario, option
from loadtests.report import Row
from loadtests.traffic import Summary
from service.core.bundle.label_details import Details
from service.core.changes import PutLabel
from service.core.encoding.encoder import encode
from service.core.index.frozen_segment import build_segment
from service.core.label_filter import LabelFilter, Metadata, parse
from service.core.memory.filtered_view import filtered
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.label_fields import BundleFields
from service.core.memory.view import View
from service.core.types import Doubles, Floats, NewLabel, Role

SHARES = (0.95, 0.5, 0.1, 0.01, 0.001, 0.0001)
NUMBERS = ("random", "near", "far")
MOST_TIMES = 3.0  # p99 of a filtered query over that of an unfiltered one
_CANDIDATES = 5_000  # texts among which the queries are chosen
_BATCH = 1_000  # labels posted at once


@dataclass(frozen=True, kw_only=True)
class Filters(Scenario):
    """Filtered queries of a bundle, and the unfiltered ones next to each."""

    title = "Filtered queries"
    judged = True

    queries: int = option("Number of queries per filter.", 200)
    live: int = option("Labels that are posted first, in segments as a service would build.", 0)

    def rows(self) -> Iterator[Row]:
        """Yield a row per filter; the unfiltered time is measured again next to each."""
        bare = BarePredictor.open(self.bundle)
        texts = list(islice(self.texts(), _CANDIDATES))
        vectors = encode(bare.encoder, texts, role=Role.QUERY)
        nearest = np.argsort(-(vectors @ vectors[0]), kind="stable")[: self.queries]
        asked = [texts[place] for place in nearest]
        with TemporaryDirectory() as folder:
            memory = KnowledgeMemory(bare.view.bundle)
            _post(memory, self.live, Path(folder), seed=self.seed)
            view = _numbered(memory.view, vectors[0], seed=self.seed)
            for number, share in product(NUMBERS, SHARES):
                wanted = parse({"all": [{"field": number, "lt": share}]}, at="filter", most=10)
                what = f"{share:.2%} of the labels, {number}"
                yield _row(bare, view, wanted, asked, vectors[nearest], what=what)


def _row(
    bare: BarePredictor,
    view: View,
    wanted: LabelFilter,
    queries: Sequence[str],
    vectors: Floats,  # of the queries, [B, d]
    *,
    what: str,
) -> Row:
    start = process_time()
    kept = filtered(view, wanted).view
    made = process_time() - start
    times = cpu_times(bare, {"plain": lambda: view, "found": lambda: kept}, queries)
    plain, found = (Summary.of(seconds[0]) for seconds in times.values())
    recall = measure_recall(kept, vectors, depth=min(bare.options.depth, kept.rows))
    full = min(bare.options.top_k, len(kept.labels))
    answer = bare.predictor.predict(kept, queries, bare.options)
    short = sum(len(prediction.keywords) < full for prediction in answer.predictions)
    return Row(
        what=what,
        goal=f"recall >= {RECALL}, full, p99 <= {MOST_TIMES:.0f} x",
        measured=f"{kept.rows:,} rows; recall {recall.mean:.4f}; {short} short answers; p50"
        f" {found.p50:.2f} ms, p99 {found.p99:.2f} ms, unfiltered"
        f" {plain.p50:.2f} and {plain.p99:.2f}; the view was made in"
        f" {1000 * made:.1f} ms",
        met=recall.mean >= RECALL and not short and found.p99 <= MOST_TIMES * plain.p99,
        figures={
            "recall": recall.mean,
            "short": short,
            "times": found.p99 / plain.p99,
            "rows": kept.rows,
        },
    )


def _numbered(view: View, query: Floats, *, seed: int) -> View:
    """Return the view with the three numbers of each of the bundle's labels as metadata."""
    keys = view.bundle.keys[view.bundle.instances :]
    rank = np.empty(len(keys))
    rank[np.argsort(-(keys.astype(np.float32) @ query), kind="stable")] = np.arange(len(keys))
    near = rank / len(keys)
    random = np.random.default_rng(seed).random(len(keys))
    of_bundle = BundleFields(
        (column, Details(metadata=_numbers(*numbers)))
        for column, numbers in enumerate(zip(random.tolist(), near.tolist(), strict=True))
    )
    labels = view.labels
    return replace(view, labels=replace(labels, fields=replace(labels.fields, of_bundle=of_bundle)))


def _numbers(random: float, near: float) -> Metadata:
    return {"random": random, "near": near, "far": 1.0 - near}


def _post(memory: KnowledgeMemory, count: int, folder: Path, *, seed: int) -> None:
    """Post labels near to the bundle's, with random numbers, and build their segments."""
    bundle, rng = memory.view.bundle, np.random.default_rng(seed)
    for first in range(0, count, _BATCH):
        columns = rng.integers(bundle.labels, size=min(_BATCH, count - first))
        keys = bundle.keys[bundle.instances + columns].astype(np.float32)
        keys += rng.normal(scale=0.3 / keys.shape[1] ** 0.5, size=keys.shape).astype(np.float32)
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
        numbers: Doubles = rng.random((len(keys), 2))
        version = memory.view.version
        memory.apply(
            [
                PutLabel(
                    sequence=version + 1 + place,
                    label=NewLabel(
                        id=f"live {first + place}",
                        text=f"live {first + place}",
                        metadata=_numbers(*numbers[place].tolist()),
                    ),
                    vectors=keys[place : place + 1].astype(np.float16),
                )
                for place in range(len(keys))
            ]
        )
    parameters = bundle.manifest.index.parameters()
    for place, plan in enumerate(memory.view.unsealed_plans()):
        vectors = memory.view.vectors(plan.rows)
        segment = build_segment(vectors, parameters, folder / f"{place}.index", lambda _rows: None)
        memory.attach(memory.seal(plan, segment))


if __name__ == "__main__":
    Filters.command()
