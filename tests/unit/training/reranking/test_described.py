"""Candidates have the same features as in the service, and are ranked by sums of trees."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.core.prediction.reranking.features import FEATURES
from service.core.prediction.reranking.text_overlap import WordRarity
from training.checkpoints.choices import Choices
from training.evaluation.prediction import OfflineMemory, retrieve
from training.reranking.candidates import LabelsOfMemory, Pairs, Queries
from training.reranking.described import Described, Items, describe, item_features

TEXTS = ["red tent", "blue tent", "lamp", "stove"]
CHOICES = Choices(system="rae", tau=0.1, memorization=0.5, depth=6)


@pytest.fixture(scope="module")
def queries() -> Queries:
    """Return two queries, with three instance rows and four labels."""
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(7, 8))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    memory = OfflineMemory(
        keys=keys.astype(np.float16),
        labels_of=csr_matrix([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]]),
        label_ids=["a", "b", "c", "d"],
    )
    vectors = keys[:2].astype(np.float32)
    return Queries(
        texts=["a red tent", "lamp"],
        vectors=vectors,
        choices=CHOICES,
        labels=LabelsOfMemory(memory=memory, texts=TEXTS),
        retrieved=retrieve(memory, vectors, depth=6).voting(0.5, 6),
        positives=csr_matrix([[1, 0, 0, 0], [0, 0, 1, 0]]),
        filtered=csr_matrix((2, 4)),
    )


def described(queries: Queries, **how: object) -> Described:
    return describe(queries, WordRarity.among(TEXTS), candidates=2, **how)  # type: ignore[arg-type]


def test_only_candidates_have_features(queries: Queries) -> None:
    found = described(queries)
    assert found.features.shape == (4, len(FEATURES)) == (len(found.candidates), len(found.names))
    assert found.candidates.queries.tolist() == [0, 0, 1, 1]
    assert len(found.pairs) > 4
    frequency = found.features[:, FEATURES.index("label frequency")]
    expected = np.log1p(np.array([2, 1, 1, 0]))[found.candidates.labels]
    assert frequency == pytest.approx(expected)


def test_sums_order_the_candidates_and_the_others_follow(queries: Queries) -> None:
    found = described(queries)
    memory, labels = found.ranked_by_votes(), found.candidates.labels
    again = found.ranked_by(np.array([-5.0, -4.0, 2.0, 1.0]))
    assert again[0, :2].tolist() == labels[[1, 0]].tolist()
    assert again[1, :2].tolist() == labels[[2, 3]].tolist()
    assert again[:, 2:].tolist() == memory[:, 2:].tolist()


def test_items_are_further_features(queries: Queries) -> None:
    items = Items(
        queries=csr_matrix([[1, 0], [0, 1]]),
        labels=csr_matrix([[1, 0], [0, 0], [0, 1], [0, 0]]),
        instances=csr_matrix((3, 2)),
    )
    found = described(queries, items=items)
    assert found.names[: len(FEATURES)] == FEATURES
    assert found.names[len(FEATURES)] == "items in common"
    assert found.features.shape == (4, len(found.names))
    shared = found.features[:, len(FEATURES)] > 0
    pairs = zip(found.candidates.queries.tolist(), found.candidates.labels.tolist(), strict=True)
    assert shared.tolist() == [pair in ((0, 0), (1, 2)) for pair in pairs]


def test_a_query_without_a_label_has_no_features(queries: Queries) -> None:
    nothing = SimpleNamespace(similarities=np.full((2, 6), -np.inf, np.float32))
    rows = np.full((2, 6), -1, np.int64)
    empty = Queries(
        **{
            name: getattr(queries, name)
            for name in ("texts", "vectors", "choices", "labels", "positives", "filtered")
        },
        retrieved=(nothing.similarities, rows),
    )
    found = described(empty)
    assert found.features.shape == (0, len(FEATURES))
    assert (found.ranked_by(np.zeros(0)) == -1).all()


def test_rare_items_weigh_more_and_rows_tell_of_their_labels() -> None:
    items = Items(
        queries=csr_matrix([[1, 1, 0]]),
        labels=csr_matrix([[1, 1, 0], [1, 0, 1], [0, 0, 0]]),
        instances=csr_matrix([[1, 1, 0], [0, 0, 1]]),
    )
    labels_of = csr_matrix([[1, 0, 1], [0, 1, 0]])  # two rows, three labels
    candidates = Pairs(
        queries=np.zeros(3, np.int64), labels=np.arange(3), votes=np.ones(3), count=1
    )
    features = item_features(items, labels_of, candidates)
    both, one = np.log(4 / 3), np.log(4 / 2)
    assert features["items in common"] == pytest.approx([both + one, both, 0.0])
    assert features["items of the query in the label"][0] == pytest.approx(1.0)
    assert features["items of the label in the query"][1] == pytest.approx(both / (both + one))
    # Only the first row has the query's items; its labels are 0 and 2.
    assert features["items of the label's rows"] == pytest.approx([1.0, 0.0, 1.0])
    assert all(np.isfinite(values).all() for values in features.values())
