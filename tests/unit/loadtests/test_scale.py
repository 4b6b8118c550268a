"""Scaling with the number of keys: recombined texts, random vectors, and bundles."""

from pathlib import Path

import numpy as np
import pytest

from loadtests.scale import (
    Pairs,
    Scale,
    build,
    recombined,
    source_texts,
)
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.errors import InvalidInput


@pytest.fixture(scope="module")
def source(tiny_bundle_folder: Path) -> Bundle:
    """The opened tiny bundle, which has a real encoder."""
    return open_bundle(tiny_bundle_folder)


def test_a_text_joins_the_halves_of_two() -> None:
    assert recombined("warm winter boots", "shelter for two") == "warm winter for two"
    assert recombined("boots", "tent") == "boots tent"


def test_drawn_vectors_are_unit_vectors_near_their_sources(source: Bundle) -> None:
    texts, keys = source_texts(source), np.asarray(source.keys)
    pairs, again, other = (Pairs.drawn(200, sources=14, seed=seed) for seed in (0, 0, 1))
    assert pairs.texts(texts) == again.texts(texts) != other.texts(texts)
    drawn = pairs.vectors(keys, seed=0)
    assert np.array_equal(drawn, again.vectors(keys, seed=0))
    assert np.allclose(np.linalg.norm(drawn.astype(np.float32), axis=1), 1, atol=1e-3)
    similarities = drawn.astype(np.float32) @ keys.astype(np.float32).T
    assert similarities[range(200), pairs.heads].mean() > similarities.mean()


def test_a_bundle_of_a_size_is_built_once(source: Bundle, tmp_path: Path) -> None:
    how = {"vectors": "drawn", "library": "faiss", "seed": 3}
    built = build(source, tmp_path, keys=50, **how)
    opened = open_bundle(built.folder)
    assert (opened.instances, opened.labels, len(opened.indices)) == (10, 40, 100)
    assert all(len(set(voted)) == 10 for voted in opened.indices.reshape(10, 10).tolist())
    assert build(source, tmp_path, keys=50, **how) == built


def test_own_keys_are_those_of_the_bundle(source: Bundle, tmp_path: Path) -> None:
    built = build(source, tmp_path, keys=14, vectors="own", library="faiss-sq4", seed=3)
    opened = open_bundle(built.folder)
    assert source_texts(opened) == source_texts(source)
    assert np.array_equal(opened.keys, source.keys)
    assert opened.manifest.index.library == "faiss-sq4"


def test_too_few_and_too_many_keys_are_refused(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    scale = {"bundle": tiny_bundle_folder, "out": tmp_path, "vectors": "own"}
    for size in (9, 15):
        with pytest.raises(InvalidInput, match="at least 10, and at most 14"):
            next(Scale(sizes=(size,), **scale).rows())
