"""Scaling with the number of keys: recombined texts, random vectors, bundles and fitted curves."""

from pathlib import Path

import numpy as np
import pytest

from loadtests.scale.__main__ import fitted
from loadtests.scale.bundles import (
    Pairs,
    Sources,
    build,
    cut_encoder,
    recombined,
)
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.errors import InvalidInput
from service.core.types import Role


@pytest.fixture(scope="module")
def bundle(tiny_bundle_folder: Path) -> Bundle:
    """The opened tiny bundle, which has a real encoder."""
    return open_bundle(tiny_bundle_folder)


@pytest.fixture
def sources(bundle: Bundle, tmp_path: Path) -> Sources:
    """The texts of the tiny bundle, which are recombined."""
    return Sources.read(bundle.folder, [], dimensions=None, work=tmp_path / "work")


# Texts and vectors ----------------------------------------------------------------------------


def test_a_text_joins_the_halves_of_two() -> None:
    assert recombined("warm winter boots", "shelter for two") == "warm winter for two"
    assert recombined("boots", "tent") == "boots tent"


def test_the_same_seed_draws_the_same(sources: Sources) -> None:
    once, again, other = (Pairs.drawn(30, sources=14, seed=seed) for seed in (1, 1, 2))
    assert once.texts(sources.texts) == again.texts(sources.texts) != other.texts(sources.texts)
    drawn = once.vectors(sources.vectors, seed=1)
    assert np.array_equal(drawn, again.vectors(sources.vectors, seed=1))


def test_drawn_vectors_are_unit_vectors_near_their_sources(sources: Sources) -> None:
    pairs = Pairs.drawn(200, sources=len(sources.texts), seed=0)
    drawn = pairs.vectors(sources.vectors, seed=0).astype(np.float32)
    assert np.allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-3)
    to_source = np.sum(drawn * sources.vectors[pairs.heads], axis=1)
    to_any = drawn @ sources.vectors.astype(np.float32).T
    assert to_source.mean() > to_any.mean()


# Bundles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("vectors", ["encoded", "drawn"])
def test_a_bundle_of_a_size_is_built_once(sources: Sources, tmp_path: Path, vectors: str) -> None:
    built = build(sources, tmp_path / "bundles", keys=50, vectors=vectors, seed=3)
    opened = open_bundle(built.folder)
    assert (opened.instances, opened.labels, len(opened.indices)) == (10, 40, 100)
    for row in range(opened.instances):
        voted = opened.indices[opened.indptr[row] : opened.indptr[row + 1]]
        assert len(set(voted.tolist())) == 10
    assert build(sources, tmp_path / "bundles", keys=50, vectors=vectors, seed=3) == built


def test_encoded_keys_are_those_of_their_texts(sources: Sources, tmp_path: Path) -> None:
    opened = open_bundle(build(sources, tmp_path, keys=20, vectors="encoded", seed=0).folder)
    texts = [*opened.instance_texts, *opened.label_texts]
    vectors = encode(OnnxEncoder(sources.encoder, sources.facts), texts, role=Role.LABEL)
    assert np.allclose(opened.keys, vectors, atol=1e-3)


def test_too_few_keys_are_refused(sources: Sources, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="at least 10"):
        build(sources, tmp_path, keys=9, vectors="drawn", seed=0)


def test_a_cut_encoder_gives_the_first_dimensions_at_unit_length(
    bundle: Bundle, tmp_path: Path
) -> None:
    pytest.importorskip("onnx")
    whole, facts = bundle.folder, bundle.manifest.encoder
    cut = cut_encoder(whole, facts, tmp_path / "cut", dimensions=3)
    texts = ["warm boots", "tent"]
    first = encode(OnnxEncoder(whole, facts), texts, role=Role.QUERY)[:, :3]
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    assert np.allclose(
        encode(OnnxEncoder(tmp_path / "cut", cut), texts, role=Role.QUERY), expected, atol=1e-6
    )
    assert cut.fingerprint != facts.fingerprint
    with pytest.raises(InvalidInput, match="dimensions must be 1 to"):
        cut_encoder(whole, facts, tmp_path / "more", dimensions=10_000)


# Laws -----------------------------------------------------------------------------------------


def test_laws_are_fitted() -> None:
    keys = [1_000, 10_000, 100_000]
    assert fitted(keys, [2.0, 20.0, 200.0])["exponent"] == pytest.approx(1)
    assert fitted(keys, [5.0, 6.5, 8.0])["tenfold"] == pytest.approx(1.5)
