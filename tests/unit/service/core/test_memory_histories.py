"""Random histories of the memory: every view, new or old, answers as the dense oracle did then."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from service.core.bundle import Bundle
from service.core.encoder import encode
from service.core.memory import KnowledgeMemory, MemoryLimits, PutLabel
from service.core.predictor import Predictor
from service.core.types import NewLabel, PredictOptions, Role, RowKind
from service.core.view import View
from tests.support.bundles import LABELS, Catalogue
from tests.support.oracle import Oracle
from tests.support.tiny_encoder import TrigramEncoder

ENCODER = TrigramEncoder()
TAU = 0.1
QUERIES = ("tent for the trail", "light boots")
EVERYTHING = 200  # more rows than any history makes

ids = st.sampled_from([*LABELS, "new-1", "new-2", "new-3"])
words = st.sampled_from(["tent", "light tent", "trail boots", "red lamp", "x"])
new_labels = st.builds(NewLabel, id=ids, text=words, queries=st.lists(words, max_size=4).map(tuple))


def living(view: View, kind: RowKind | None = None) -> np.ndarray:
    vectors = encode(ENCODER, QUERIES[:1], role=Role.QUERY)
    rows = view.retrieve(vectors, depth=EVERYTHING, kind=kind)[1][0]
    return rows[rows >= 0]


def said(view: View) -> Counter:
    """What every living row says: kind, text, and the ids that it votes for."""
    rows = living(view)
    columns, counts = view.votes(rows)
    votes = np.split(columns, np.cumsum(counts)[:-1])
    return Counter(
        (
            RowKind.INSTANCE if instance else RowKind.LABEL,
            view.text(row),
            tuple(sorted(view.labels.id_at(column) for column in voted.tolist())),
        )
        for row, instance, voted in zip(
            rows.tolist(), view.is_instance(rows).tolist(), votes, strict=True
        )
    )


class Histories(RuleBasedStateMachine):
    """Puts labels in batches, keeps all views, and asks old and new ones."""

    bundle: Bundle

    @initialize(block_rows=st.sampled_from([1, 3, 8]))
    def start(self, block_rows: int) -> None:
        limits = MemoryLimits(live_rows=EVERYTHING, block_rows=block_rows)
        self.memory = KnowledgeMemory(self.bundle, limits)
        self.oracle = Oracle.of(Catalogue(), ENCODER)
        self.kept: list[tuple[View, Counter]] = []
        self.keep()

    @rule(labels=st.lists(new_labels, min_size=1, max_size=3))
    def put(self, labels: list[NewLabel]) -> None:
        changes = []
        for label in labels:
            texts = encode(ENCODER, [label.text, *label.queries], role=Role.LABEL)
            sequence = self.memory.view.version + len(changes) + 1
            changes.append(
                PutLabel(sequence=sequence, label=label, vectors=texts.astype(np.float16))
            )
            self.oracle.put(label)
        view = self.memory.apply(changes)
        assert view.version == changes[-1].sequence
        self.keep()

    def keep(self) -> None:
        rows = ((row.kind, row.text, tuple(sorted(row.voted))) for row in self.oracle.rows())
        self.kept.append((self.memory.view, Counter(rows)))

    @rule(memorization=st.sampled_from([0.0, 0.3, 1.0]), query=st.sampled_from(QUERIES))
    def predict(self, memorization: float, query: str) -> None:
        options = PredictOptions(top_k=50, memorization=memorization, depth=EVERYTHING)
        answer = Predictor(ENCODER, tau=TAU).predict(self.memory.view, [query], options)
        scores = {keyword.id: keyword.score for keyword in answer.predictions[0].keywords}
        dense = self.oracle.scores(query, tau=TAU, memorization=memorization)
        assert scores == pytest.approx(
            {label_id: score for label_id, score in dense.items() if label_id in scores}, abs=1e-5
        )
        assert all(score == 0.0 for label_id, score in dense.items() if label_id not in scores)

    @rule(kind=st.sampled_from([None, *RowKind]), depth=st.integers(min_value=1, max_value=20))
    def retrieve(self, kind: RowKind | None, depth: int) -> None:
        vectors = encode(ENCODER, QUERIES, role=Role.QUERY)
        for exact in (False, True):
            found, _ = self.memory.view.retrieve(vectors, depth=depth, kind=kind, exact=exact)
            for query, similarities in zip(QUERIES, found, strict=True):
                expected = self.oracle.similarities(query, kind)[:depth]
                assert similarities[: len(expected)] == pytest.approx(expected, abs=1e-5)
                assert np.all(similarities[len(expected) :] == -np.inf)

    @invariant()
    def every_view_still_says_what_it_said(self) -> None:
        for view, expected in self.kept:
            assert said(view) == expected

    @invariant()
    def dead_and_living_rows_are_all_rows(self) -> None:
        view = self.memory.view
        assert len(living(view)) == view.base_rows + view.live_rows - view.dead_rows


def test_histories(trigram_bundle: Bundle) -> None:
    class OfTheBundle(Histories):
        bundle = trigram_bundle

    OfTheBundle.TestCase.settings = settings(
        max_examples=60, stateful_step_count=10, deadline=None, derandomize=True
    )
    OfTheBundle.TestCase("runTest").runTest()
