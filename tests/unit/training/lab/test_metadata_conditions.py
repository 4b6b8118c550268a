"""The metadata of test queries in each condition; only changed queries are encoded again."""

from functools import partial

import numpy as np
import pytest
from scipy.sparse import csr_matrix

pytest.importorskip("torch")

from service.core.types import Floats, Role
from training.lab.metadata_conditions import (
    bank,
    conditions,
    dropped,
    predicted_items,
    query_vectors,
    replaced,
    within,
)
from training.lab.robustness import NO_ITEMS, PREDICTED, TRUE, Condition

SEEDS = (13, 14, 15)


def unit(rows: int, *, seed: int) -> Floats:
    vectors = np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)
    normalized: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normalized


def some_items() -> csr_matrix:
    drawn = np.random.default_rng(0).random((200, 50)) < 0.1
    return csr_matrix(drawn.astype(np.float32))


def all_conditions() -> dict[Condition, list[csr_matrix]]:
    predict = partial(predicted_items, unit(200, seed=1), unit(50, seed=2), most=3)
    return dict(conditions(some_items(), predict, seeds=SEEDS))


def test_what_is_random_is_drawn_once_a_seed() -> None:
    found = all_conditions()
    assert len(found) == 1 + 2 + 6 + 8
    for condition, matrices in found.items():
        random = condition not in (TRUE, PREDICTED, NO_ITEMS)
        assert len(matrices) == (len(SEEDS) if random else 1)
        if random:
            assert (matrices[0] != matrices[1]).nnz, f"{condition}: two seeds draw the same"


def test_shares_are_those_of_the_links_or_of_the_items() -> None:
    found, links = all_conditions(), some_items().nnz
    for matrix in found[Condition(metadata="dropped", share=0.4)]:
        assert matrix.nnz / links == pytest.approx(0.6, abs=0.05)
        assert not (matrix > some_items()).nnz, "only true links are left"
    for matrix in found[Condition(metadata="replaced", share=0.4)]:
        kept = matrix.multiply(some_items()).nnz
        assert kept / links == pytest.approx(0.64, abs=0.05)  # a replacement may be a true link
    for matrix in found[Condition(metadata="in a bank of", share=0.2)]:
        assert (matrix.sum(axis=0) > 0).sum() <= 10
    assert found[NO_ITEMS][0].nnz == 0


def test_predicted_items_are_the_most_similar_of_the_bank() -> None:
    queries, keys = unit(20, seed=3), unit(9, seed=4)
    banked = np.arange(9) % 2 == 0
    found = predicted_items(queries, keys, banked, most=2).toarray()
    similarities = np.where(banked, queries @ keys.T, -np.inf)
    for row, line in enumerate(found):
        assert set(np.flatnonzero(line)) == set(np.argsort(-similarities[row])[:2])
    assert predicted_items(queries, keys, np.zeros(9, bool), most=2).nnz == 0
    assert predicted_items(queries, keys, banked, most=7).sum() == 20 * 5, "no more than there are"


def test_only_unknown_texts_are_encoded() -> None:
    encoded: list[str] = []

    def encode(texts: list[str], *, role: Role) -> Floats:
        assert role is Role.QUERY
        encoded.extend(texts)
        return np.full((len(texts), 2), 7.0, np.float32)

    true, plain = ("a x", "b", "c y"), ("a", "b", "c")
    known = ((true, np.ones((3, 2), np.float32)), (plain, np.zeros((3, 2), np.float32)))
    found = query_vectors(("a x", "b", "c z"), known, encode=encode)
    assert found[:, 0].tolist() == [1.0, 1.0, 7.0], "the first known text counts"
    assert encoded == ["c z"]
    again = query_vectors(("a", "b", "c"), known, encode=encode)
    assert again[:, 0].tolist() == [0.0, 1.0, 0.0]
    assert encoded == ["c z"], "nothing new to encode"


def test_all_or_none_of_the_links_are_changed_and_each_has_weight_one() -> None:
    links, rng = some_items(), np.random.default_rng(0)
    assert [dropped(links, share, rng).nnz for share in (0.0, 1.0)] == [links.nnz, 0]
    assert (replaced(links, 0.0, rng) != links).nnz == 0
    assert set(np.unique(replaced(links, 0.4, rng).data)) == {1.0}


def test_a_bank_keeps_the_links_to_its_items() -> None:
    banked, links = bank(50, 0.2, np.random.default_rng(0)), some_items()
    assert banked.sum() == 10
    left = within(links, banked).toarray()
    assert left[:, ~banked].sum() == 0
    assert (left[:, banked] == links.toarray()[:, banked]).all()
