"""Algorithm 1 of IRENE, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from service.core.bundle.manifest import Refinement
from service.core.encoding.irene import (
    ASSOCIATED,
    NovelLabels,
    Shortlisted,
    leaning,
    most_voted,
    moved,
    pool_weights,
    refined,
    votes_for,
)

NAN = float("nan")
SEEN = np.eye(4, dtype=np.float32)  # texts and classifiers of four seen labels
KEYS = 0.5 * SEEN + 0.1


def a_refinement(text: float = 0.2, query: float = 0.5, shortlist: int = 4) -> Refinement:
    return Refinement(shortlist=shortlist, text_threshold=text, query_threshold=query)


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def listed(
    similarities: np.ndarray, *, texts: np.ndarray, queries: np.ndarray | None
) -> Shortlisted:
    """A shortlist of labels 10, 11, ..."""
    return Shortlisted(
        rows=10 + np.tile(np.arange(similarities.shape[1]), (len(similarities), 1)),
        similarities=similarities,
        text_scores=texts,
        query_scores=np.full_like(texts, NAN) if queries is None else queries,
    )


def associated_labels(listed: Shortlisted, refinement: Refinement) -> np.ndarray:
    votes = votes_for(listed, refinement)
    return most_voted(votes=votes, similarities=listed.similarities, count=ASSOCIATED)


def test_zero_shot_keeps_the_nearest_that_agree() -> None:
    places = associated_labels(
        listed(
            rows([0.9, 0.8, 0.7, 0.6, 0.5]), texts=rows([0.3, 0.1, 0.2, 0.9, 0.9]), queries=None
        ),
        a_refinement(),
    )
    assert places.tolist() == [[0, 2, 3]]


def test_one_shot_prefers_what_both_lists_hold() -> None:
    places = associated_labels(
        listed(
            rows([0.9, 0.8, 0.7, 0.6, 0.5]),
            texts=rows([0.3, 0.3, 0.3, 0.3, 0.1]),
            queries=rows([0.1, 0.6, 0.1, 0.5, 0.9]),
        ),
        a_refinement(),
    )
    assert places.tolist() == [[1, 3, 0]], "the last one fails by its text, whatever the query"


def test_a_label_without_a_query_is_zero_shot() -> None:
    scores = rows([0.3, 0.3, 0.3, 0.3])
    places = associated_labels(
        listed(rows([0.9, 0.8, 0.7, 0.6]), texts=scores, queries=rows([NAN, NAN, NAN, NAN])),
        a_refinement(),
    )
    assert places.tolist() == [[0, 1, 2]]


def test_none_may_survive() -> None:
    places = associated_labels(
        listed(rows([0.9, 0.8]), texts=rows([0.1, 0.0]), queries=None),
        a_refinement(),
    )
    assert places.tolist() == [[-1] * ASSOCIATED]


def test_empty_places_of_a_shortlist_are_nobody() -> None:
    places = associated_labels(
        listed(
            rows([0.9, -np.inf, -np.inf, -np.inf]), texts=rows([0.9, 0.9, 0.9, 0.9]), queries=None
        ),
        a_refinement(),
    )
    assert places.tolist() == [[0, -1, -1]]


def test_a_threshold_is_met_by_itself() -> None:
    assert refined(np.array([0.5, NAN, 0.25]), threshold=0.5).tolist() == [True, False, False]


def test_votes_before_similarity() -> None:
    votes, similarities = np.array([[1, 2, 0, 2]]), rows([0.9, 0.1, 0.8, 0.2])
    assert most_voted(votes=votes, similarities=similarities, count=3).tolist() == [[3, 1, 0]]


def test_who_is_pooled_weighs_by_votes_and_nearness() -> None:
    votes, similarities = np.array([[1, 2, 0, 1]]), rows([0.9, 0.9, 0.8, 0.9 - 0.1 * np.log(2)])
    weights = pool_weights(votes, similarities, temperature=0.1)
    assert weights[0] == pytest.approx(np.array([2, 4, 0, 1]) / 7)


def test_where_nobody_survives_nothing_is_pooled() -> None:
    nobody = rows([-np.inf, -np.inf])
    assert pool_weights(np.array([[0, 0]]), nobody, temperature=0.1).tolist() == [[0.0, 0.0]]


def unit(vector: list[float] | np.ndarray) -> np.ndarray:
    return np.asarray(vector, np.float32) / np.linalg.norm(vector)


def test_a_key_lies_between_its_text_and_what_the_combiner_says() -> None:
    texts, combined = rows([1.0, 0.0]), rows([0.0, 1.0])
    assert moved(texts, combined, strength=0.0)[0] == pytest.approx([1.0, 0.0])
    assert moved(texts, combined, strength=0.5)[0] == pytest.approx(unit([1.0, 1.0]))
    assert moved(texts, combined, strength=1.0)[0] == pytest.approx([0.0, 1.0])


def test_a_key_leans_towards_its_query_where_there_is_one() -> None:
    keys, queries = rows([1.0, 0.0], [1.0, 0.0]), rows([0.0, 1.0], [NAN, NAN])
    assert leaning(keys, queries, weight=0.5)[0] == pytest.approx(unit([1.0, 0.5]))
    assert leaning(keys, queries, weight=0.5)[1] == pytest.approx([1.0, 0.0])
    assert leaning(keys, queries, weight=0.0)[0] == pytest.approx([1.0, 0.0])


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


def test_a_text_is_enriched_by_its_associated_classifiers(labels: NovelLabels) -> None:
    texts = rows([0.6, 0.8, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5], [0.4, 0.3, 0.2, 0.1])
    found = labels.represent(texts)
    assert found.associated.tolist() == [[1, 0, -1], [0, 1, -1], [-1, -1, -1]]
    assert found.similarities[0] == pytest.approx([0.8, 0.6, 0.0])
    assert found.vectors[0] == pytest.approx(unit([1.6, 1.8, 0.0, 0.0]))
    assert found.vectors[2] == pytest.approx(unit(texts[2])), "nobody agrees: the text alone"


def test_a_revealed_query_changes_who_is_associated(labels: NovelLabels) -> None:
    texts = rows([0.6, 0.8, 0.0, 0.0])
    with_query = labels.represent(texts, rows([1.0, 0.0, 0.0, 0.0]))
    assert with_query.associated.tolist() == [[0, 1, -1]]


def test_pooled_survivors_join_the_text_as_one(labels: NovelLabels) -> None:
    pooling = replace(a_refinement(text=0.3, query=0.5, shortlist=4), pooling=0.2)
    texts = rows([0.6, 0.7, 0.4, 0.0], [0.2, 0.2, 0.2, 0.2])
    found = replace(labels, refinement=pooling).represent(texts)
    weights = np.exp(np.array([0.6, 0.7, 0.4, -np.inf]) / 0.2)
    assert found.vectors[0] == pytest.approx(unit(texts[0] + weights / weights.sum()), abs=1e-6)
    assert found.vectors[1] == pytest.approx(unit(texts[1])), "nobody survives"
    assert found.associated.tolist() == [[1, 0, 2], [-1, -1, -1]]


def test_what_neighbours_have_beyond_their_texts_moves_a_text(labels: NovelLabels) -> None:
    one = replace(a_refinement(text=0.3, shortlist=1), pooling=0.2, residual=1.0)
    texts = rows([0.6, 0.8, 0.0, 0.0])  # the second is nearest
    found = replace(labels, refinement=one).represent(texts)
    assert found.vectors[0] == pytest.approx(unit(texts[0] + SEEN[1] - KEYS[1]), abs=1e-3)
    half = replace(labels, refinement=replace(one, residual=0.5)).represent(texts)
    assert half.vectors[0] == pytest.approx(unit(texts[0] + SEEN[1] - 0.5 * KEYS[1]), abs=1e-3)


def test_a_key_is_as_long_as_was_chosen_with_a_query_and_without(labels: NovelLabels) -> None:
    texts = rows([0.6, 0.8, 0.0, 0.0], [0.8, 0.6, 0.0, 0.0])
    queries = rows([0.0, 1.0, 0.0, 0.0], [NAN] * 4)
    shorter = replace(labels.refinement, length=0.9, query_length=0.8)
    whole = labels.represent(texts, queries).vectors
    assert np.linalg.norm(whole, axis=1) == pytest.approx([1.0, 1.0])
    found = replace(labels, refinement=shorter).represent(texts, queries).vectors
    assert found == pytest.approx(whole * [[0.8], [0.9]])
