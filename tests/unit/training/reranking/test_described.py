"""Candidate pairs, their features as in the service, and their order by sums of trees."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.core.prediction.reranking.features import FEATURES
from service.core.prediction.reranking.text_overlap import WordRarity
from training.checkpoints.choices import Choices
from training.evaluation.prediction import OfflineMemory, RankedLabels, order_by_id, retrieve
from training.reranking.candidates import Pairs, Queries, entries, pairs_of
from training.reranking.described import Described, Items, describe, item_features
from training.reranking.learning import Lesson

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
        label_texts=TEXTS,
    )
    vectors = keys[:2].astype(np.float32)
    return Queries(
        texts=["a red tent", "lamp"],
        vectors=vectors,
        choices=CHOICES,
        memory=memory,
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
    nothing = (np.full((2, 6), -np.inf, np.float32), np.full((2, 6), -1, np.int64))
    found = described(replace(queries, retrieved=nothing))
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


def test_a_row_is_ranked_by_trees_that_learned_without_it() -> None:
    candidates = Pairs(queries=np.array([0, 0, 1]), labels=np.arange(3), votes=np.ones(3), count=2)
    described, nothing = SimpleNamespace(candidates=candidates), SimpleNamespace()
    lesson = Lesson(rows=np.array([4, 1]), described=described, held_out=nothing)  # type: ignore[arg-type]
    assert lesson.within(np.arange(5), 4).tolist() == [True, True, False]
    assert lesson.within(np.arange(5), 1).tolist() == [False, False, True]


BY_ID = order_by_id(["h", "g", "f", "e", "d", "c", "b", "a"])  # column 0 has the last id


def pairs() -> Pairs:
    """Return pairs of three queries, which have three, no, and two labels."""
    return Pairs(
        queries=np.array([0, 0, 0, 2, 2]),
        labels=np.array([7, 3, 5, 3, 1]),
        votes=np.array([0.5, 0.3, 0.2, 0.6, 0.4]),
        count=3,
    )


def test_new_scores_rank_anew_and_equal_ones_by_id() -> None:
    ranked = pairs().ranked_by(np.array([0.0, 1.0, 1.0, 2.0, 2.0]), top_k=2, order=BY_ID)
    assert ranked.tolist() == [[5, 3], [-1, -1], [3, 1]]
    longer = pairs().ranked_by(pairs().votes, top_k=4, order=BY_ID)
    assert longer.tolist() == [[7, 3, 5, -1], [-1] * 4, [3, 1, -1, -1]]


def test_the_places_of_all_and_of_a_part() -> None:
    assert pairs().counts.tolist() == [3, 2]
    assert pairs().ranks.tolist() == [0, 1, 2, 0, 1]
    for part in (np.array([1, 2, 4]), np.array([False, True, True, False, True])):
        kept = pairs().only(part)
        assert kept.labels.tolist() == [3, 5, 1] and kept.counts.tolist() == [2, 1]


def test_the_labels_of_a_ranking() -> None:
    found = pairs_of(
        RankedLabels(
            labels=np.array([[7, 3, 5], [-1, -1, -1], [3, 1, -1]]),
            scores=np.array([[0.5, 0.3, 0.2], [0.0, 0.0, 0.0], [0.6, 0.4, 0.0]]),
        )
    )
    for name in ("queries", "labels", "votes"):
        assert getattr(found, name).tolist() == getattr(pairs(), name).tolist()
    assert found.count == 3


def test_entries_of_a_table() -> None:
    table = csr_matrix(([2.0, 3.0], ([0, 2], [3, 1])), shape=(3, 8))
    assert entries(table, pairs()).tolist() == [0.0, 2.0, 0.0, 0.0, 3.0]
