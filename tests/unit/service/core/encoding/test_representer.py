"""Rows of new labels and instances: the vectors of their texts, or IRENE's enriched keys."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.manifest import Refinement
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.encoding.representer import Representer, open_representer
from service.core.errors import BundleAltered
from service.core.types import Role
from tests.support.tiny.bundles import LABELS, make_bundle, sign_again

AXE = [(Role.LABEL, "hiking axe")]
CLICKED = [*AXE, (Role.QUERY, "glacier tool"), (Role.QUERY, "ice")]
CLICK = [(Role.QUERY, "hiking axe")]
Opened = Callable[..., tuple[Bundle, OnnxEncoder, Representer]]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Open a tiny bundle for a seed of IRENE's files; tests share it and do not change it."""
    parent = tmp_path_factory.mktemp("bundles")

    @cache
    def open_all(novel: int | None) -> tuple[Bundle, OnnxEncoder, Representer]:
        bundle = open_bundle(make_bundle(parent / f"novel-{novel}", novel=novel))
        encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
        return bundle, encoder, open_representer(encoder, bundle)

    return open_all


def test_without_a_combiner_a_labels_row_is_the_vector_of_its_text(opened: Opened) -> None:
    bundle, encoder, representer = opened(None)
    assert bundle.manifest.novel is None
    [encoded] = representer.encode([CLICKED])
    texts = [text for _, text in CLICKED]
    assert np.array_equal(encoded.rows, encode(encoder, texts, role=Role.LABEL).astype(np.float16))
    assert (encoded.neighbours, representer.fingerprint) == ((), encoder.fingerprint)


def test_a_label_is_enriched_also_by_its_queries_and_they_are_not(opened: Opened) -> None:
    bundle, encoder, representer = opened(0)
    assert bundle.manifest.novel is not None
    plain = encode(encoder, [text for _, text in CLICKED], role=Role.LABEL)
    zero, one, click = representer.encode([AXE, CLICKED, CLICK])
    assert [len(encoded.rows) for encoded in (zero, one, click)] == [1, 3, 1]
    assert not np.allclose(zero.rows[0], plain[0], atol=0.01)
    assert np.linalg.norm(zero.rows[0].astype(np.float32)) == pytest.approx(1.0, abs=1e-3)
    assert np.array_equal(one.rows[1:], plain[1:].astype(np.float16))
    assert np.array_equal(click.rows[0], plain[0].astype(np.float16))
    assert click.neighbours == ()
    key, moved = (encoded.rows[0].astype(np.float32) for encoded in (zero, one))
    assert moved @ plain[1:].mean(axis=0) > key @ plain[1:].mean(axis=0)


def test_aliases_are_vectors_of_their_texts_and_enrich_nothing(opened: Opened) -> None:
    _, encoder, representer = opened(0)
    label, query, alias = (Role.LABEL, "ice axe"), (Role.QUERY, "glacier"), (Role.LABEL, "AB-12")
    [without, aliased] = representer.encode([[label, query], [label, alias, query]])
    assert np.array_equal(np.delete(aliased.rows, 1, axis=0), without.rows)
    assert aliased.neighbours == without.neighbours
    own = encode(encoder, ["AB-12"], role=Role.LABEL)[0].astype(np.float16)
    assert np.array_equal(aliased.rows[1], own)


def test_neighbours_are_the_nearest_by_text_that_have_a_classifier(opened: Opened) -> None:
    bundle, encoder, representer = opened(0)
    [encoded] = representer.encode([AXE])
    text = encode(encoder, ["hiking axe"], role=Role.LABEL)[0]
    labels = np.asarray(bundle.keys[bundle.instances :], np.float32) @ text
    nearest = np.argsort(-labels[:-1])[:3]  # the last label has no classifier
    assert [near.id for near in encoded.neighbours] == [list(LABELS)[at] for at in nearest]
    assert [near.text for near in encoded.neighbours] == [
        LABELS[near.id] for near in encoded.neighbours
    ]
    assert [near.similarity for near in encoded.neighbours] == pytest.approx(
        labels[nearest].tolist(), abs=1e-3
    )


def test_with_pooling_a_label_is_shifted_by_its_neighbours_offset(opened: Opened) -> None:
    bundle, encoder, _ = opened(0)
    pooled = Refinement(
        shortlist=6,
        text_threshold=-1.0,
        query_threshold=1.0,
        pooling=0.1,
        residual=1.0,
        length=0.9,
    )
    novel = replace(bundle.novel, facts=replace(bundle.novel.facts, refinement=pooled))
    [encoded] = open_representer(encoder, replace(bundle, novel=novel)).encode([AXE])
    text = encode(encoder, ["hiking axe"], role=Role.LABEL)[0]
    keys = np.asarray(bundle.keys[bundle.instances :], np.float32)[bundle.novel.columns]
    weights = np.exp(keys @ text / 0.1)
    beyond = np.asarray(bundle.novel.classifiers, np.float32) - keys
    key = text + weights / weights.sum() @ beyond
    assert encoded.rows[0] == pytest.approx(0.9 * key / np.linalg.norm(key), abs=2e-3)


def test_a_label_has_the_same_rows_whichever_labels_are_encoded_with_it(opened: Opened) -> None:
    *_, representer = opened(0)
    items = [[(Role.LABEL, text)] for text in LABELS.values()]
    together = representer.encode(items)
    for item, encoded in zip(items, together, strict=True):
        [alone] = representer.encode([item])
        assert np.allclose(alone.rows, encoded.rows, atol=1e-3)
        for ours, theirs in zip(alone.neighbours, encoded.neighbours, strict=True):
            assert (ours.id, ours.text) == (theirs.id, theirs.text)
            assert ours.similarity == pytest.approx(theirs.similarity, abs=2e-6)


def test_the_fingerprint_depends_on_irenes_files(opened: Opened, tmp_path: Path) -> None:
    without, one, other = (opened(seed)[2].fingerprint for seed in (None, 0, 1))
    again = open_bundle(make_bundle(tmp_path / "again", novel=0))
    encoder = OnnxEncoder(again.folder, again.manifest.encoder)
    assert one == open_representer(encoder, again).fingerprint
    assert len({without, one, other}) == 3


def test_a_combiner_that_is_no_graph_is_refused(opened: Opened, tmp_path: Path) -> None:
    bundle, encoder, _ = opened(0)
    copy = Path(shutil.copytree(bundle.folder, tmp_path / "copy"))
    (copy / "novel/combiner.onnx").write_bytes(b"no graph")
    sign_again(copy)
    with pytest.raises(BundleAltered, match="not a graph"):
        open_representer(encoder, open_bundle(copy))
