"""Algorithm 1 of IRENE, with results computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from service.core.bundle.manifest import Refinement
from service.core.encoding.irene import (
    ASSOCIATED,
    NovelLabels,
    Shortlisted,
    interpolated,
    most_voted,
    pool_weights,
    query_added,
    votes_for,
)

NAN = float("nan")
SEEN = np.eye(4, dtype=np.float32)  # texts and classifiers of four seen labels
KEYS = 0.5 * SEEN + 0.1


def a_refinement(text: float = 0.2, query: float = 0.5, shortlist: int = 4) -> Refinement:
    return Refinement(shortlist=shortlist, text_threshold=text, query_threshold=query)


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


FIVE = [0.9, 0.8, 0.7, 0.6, 0.5]


@pytest.mark.parametrize(
    ("similarities", "texts", "queries", "places"),
    [  # zero-shot keeps the most similar survivors
        (FIVE, [0.3, 0.1, 0.2, 0.9, 0.9], None, [0, 2, 3]),
        # one-shot prefers labels that agree with text and query, if the text's score suffices
        (FIVE, [0.3, 0.3, 0.3, 0.3, 0.1], [0.1, 0.6, 0.1, 0.5, 0.9], [1, 3, 0]),
        (FIVE[:4], [0.3] * 4, [NAN] * 4, [0, 1, 2]),  # no query is zero-shot
        (FIVE[:2], [0.1, 0.0], None, [-1, -1, -1]),  # no label survives
        ([0.9, *[-np.inf] * 3], [0.9] * 4, None, [0, -1, -1]),  # empty places never survive
    ],
)
def test_associated_labels(
    similarities: list[float], texts: list[float], queries: list[float] | None, places: list[int]
) -> None:
    """The shortlist holds the labels 10, 11, ...; `places` are positions in it, -1 for none.

    A score that equals its threshold reaches it.
    """
    listed = Shortlisted(
        rows=10 + np.arange(len(similarities))[None],
        similarities=rows(similarities),
        text_scores=rows(texts),
        query_scores=rows([NAN] * len(texts) if queries is None else queries),
    )
    votes = votes_for(listed, a_refinement())
    found = most_voted(votes=votes, similarities=listed.similarities, count=ASSOCIATED)
    assert found.tolist() == [places]


def test_pooling_weighs_by_votes_and_similarity() -> None:
    votes, similarities = np.array([[1, 2, 0, 1]]), rows([0.9, 0.9, 0.8, 0.9 - 0.1 * np.log(2)])
    weights = pool_weights(votes, similarities, temperature=0.1)
    assert weights[0] == pytest.approx(np.array([2, 4, 0, 1]) / 7)
    no_survivor = rows([-np.inf, -np.inf])
    assert pool_weights(np.array([[0, 0]]), no_survivor, temperature=0.1).tolist() == [[0.0, 0.0]]


def unit(vector: list[float] | np.ndarray) -> np.ndarray:
    return np.asarray(vector, np.float32) / np.linalg.norm(vector)


def test_strength_moves_a_key_from_its_text_to_the_combiners_result() -> None:
    texts, combined = rows([1.0, 0.0]), rows([0.0, 1.0])
    assert interpolated(texts, combined, strength=0.0)[0] == pytest.approx([1.0, 0.0])
    assert interpolated(texts, combined, strength=0.5)[0] == pytest.approx(unit([1.0, 1.0]))
    assert interpolated(texts, combined, strength=1.0)[0] == pytest.approx([0.0, 1.0])


def test_the_query_is_added_to_a_key_that_has_one() -> None:
    keys, queries = rows([1.0, 0.0], [1.0, 0.0]), rows([0.0, 1.0], [NAN, NAN])
    assert query_added(keys, queries, weight=0.5)[0] == pytest.approx(unit([1.0, 0.5]))
    assert query_added(keys, queries, weight=0.5)[1] == pytest.approx([1.0, 0.0])
    assert query_added(keys, queries, weight=0.0)[0] == pytest.approx([1.0, 0.0])


@pytest.fixture
def labels() -> NovelLabels:
    def shortlist(texts: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        similarities = texts @ SEEN.T
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(similarities, order, axis=1), order

    def combine(texts: np.ndarray, chosen: np.ndarray, present: np.ndarray) -> np.ndarray:
        return texts + (chosen * present[..., None]).sum(axis=1)

    return NovelLabels(
        classifiers=SEEN.astype(np.float16),
        shortlist=shortlist,
        keys_of=KEYS.__getitem__,
        combine=combine,
        refinement=a_refinement(text=0.5, query=0.5, shortlist=2),
    )


def test_a_text_is_combined_with_its_associated_classifiers(labels: NovelLabels) -> None:
    texts = rows([0.6, 0.8, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5], [0.4, 0.3, 0.2, 0.1])
    represented = labels.represent(texts)
    assert represented.associated.tolist() == [[1, 0, -1], [0, 1, -1], [-1, -1, -1]]
    assert represented.similarities[0] == pytest.approx([0.8, 0.6, 0.0])
    assert represented.vectors[0] == pytest.approx(unit([1.6, 1.8, 0.0, 0.0]))
    assert represented.vectors[2] == pytest.approx(unit(texts[2])), (
        "no label survives: the key is the text"
    )


def test_a_query_changes_which_labels_are_associated(labels: NovelLabels) -> None:
    texts = rows([0.6, 0.8, 0.0, 0.0])
    with_query = labels.represent(texts, rows([1.0, 0.0, 0.0, 0.0]))
    assert with_query.associated.tolist() == [[0, 1, -1]]


def test_pooled_survivors_are_combined_as_one_vector(labels: NovelLabels) -> None:
    pooling = replace(a_refinement(text=0.3, query=0.5, shortlist=4), pooling=0.2)
    texts = rows([0.6, 0.7, 0.4, 0.0], [0.2, 0.2, 0.2, 0.2])
    represented = replace(labels, refinement=pooling).represent(texts)
    weights = np.exp(np.array([0.6, 0.7, 0.4, -np.inf]) / 0.2)
    assert represented.vectors[0] == pytest.approx(
        unit(texts[0] + weights / weights.sum()), abs=1e-6
    )
    assert represented.vectors[1] == pytest.approx(unit(texts[1])), "no label survives"
    assert represented.associated.tolist() == [[1, 0, 2], [-1, -1, -1]]


def test_a_text_is_shifted_by_its_neighbours_offset(labels: NovelLabels) -> None:
    one = replace(a_refinement(text=0.3, shortlist=1), pooling=0.2, residual=1.0)
    texts = rows([0.6, 0.8, 0.0, 0.0])  # nearest to the second label's text
    represented = replace(labels, refinement=one).represent(texts)
    assert represented.vectors[0] == pytest.approx(unit(texts[0] + SEEN[1] - KEYS[1]), abs=1e-3)
    half = replace(labels, refinement=replace(one, residual=0.5)).represent(texts)
    assert half.vectors[0] == pytest.approx(unit(texts[0] + SEEN[1] - 0.5 * KEYS[1]), abs=1e-3)


def test_keys_have_their_own_length_with_a_query_and_without(labels: NovelLabels) -> None:
    texts = rows([0.6, 0.8, 0.0, 0.0], [0.8, 0.6, 0.0, 0.0])
    queries = rows([0.0, 1.0, 0.0, 0.0], [NAN] * 4)
    shorter = replace(labels.refinement, length=0.9, query_length=0.8)
    unit_keys = labels.represent(texts, queries).vectors
    assert np.linalg.norm(unit_keys, axis=1) == pytest.approx([1.0, 1.0])
    keys = replace(labels, refinement=shorter).represent(texts, queries).vectors
    assert keys == pytest.approx(unit_keys * [[0.8], [0.9]])
