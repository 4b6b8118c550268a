"""Rows of what is posted: a text's vector, or what the combiner makes of it and its neighbours."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.manifest import Refinement
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.encoding.representer import Representer, open_representer
from service.core.errors import BundleAltered
from service.core.types import Role
from tests.support.bundles import LABELS, make_bundle, sign_again

AXE = [(Role.LABEL, "hiking axe")]
CLICKED = [*AXE, (Role.QUERY, "glacier tool"), (Role.QUERY, "ice")]
CLICK = [(Role.QUERY, "hiking axe")]
Opened = Callable[..., tuple[Bundle, OnnxEncoder, Representer]]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    def make(
        novel: int | None = 0, name: str = "bundle"
    ) -> tuple[Bundle, OnnxEncoder, Representer]:
        bundle = open_bundle(make_bundle(tmp_path / name, novel=novel))
        encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
        return bundle, encoder, open_representer(encoder, bundle)

    return make


def test_without_a_combiner_a_label_is_its_text(opened: Opened) -> None:
    bundle, encoder, representer = opened(novel=None)
    assert bundle.manifest.novel is None
    [encoded] = representer.encode([CLICKED])
    texts = [text for _, text in CLICKED]
    assert np.array_equal(encoded.rows, encode(encoder, texts, role=Role.LABEL).astype(np.float16))
    assert (encoded.neighbours, representer.fingerprint) == ((), encoder.fingerprint)


def test_a_label_is_enriched_and_its_queries_are_not(opened: Opened) -> None:
    bundle, encoder, representer = opened()
    assert bundle.manifest.novel is not None
    plain = encode(encoder, [text for _, text in CLICKED], role=Role.LABEL)
    zero, one, click = representer.encode([AXE, CLICKED, CLICK])
    assert [len(encoded.rows) for encoded in (zero, one, click)] == [1, 3, 1]
    assert not np.allclose(zero.rows[0], plain[0], atol=0.01)
    assert np.linalg.norm(zero.rows[0].astype(np.float32)) == pytest.approx(1.0, abs=1e-3)
    assert np.array_equal(one.rows[1:], plain[1:].astype(np.float16))
    assert np.array_equal(click.rows[0], plain[0].astype(np.float16))
    assert click.neighbours == ()


def test_a_posted_query_draws_the_key_near(opened: Opened) -> None:
    _, encoder, representer = opened()
    query = encode(encoder, ["glacier tool", "ice"], role=Role.QUERY).mean(axis=0)
    zero, one = (
        encoded.rows[0].astype(np.float32) for encoded in representer.encode([AXE, CLICKED])
    )
    assert one @ query > zero @ query


def test_neighbours_are_the_nearest_by_text_that_have_a_classifier(opened: Opened) -> None:
    bundle, encoder, representer = opened()
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


def test_pooled_a_label_is_moved_as_those_like_it_were(opened: Opened) -> None:
    bundle, encoder, _ = opened()
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


def test_alone_or_among_others_a_label_is_the_same(opened: Opened) -> None:
    *_, representer = opened()
    items = [[(Role.LABEL, text)] for text in LABELS.values()]
    together = representer.encode(items)
    for item, encoded in zip(items, together, strict=True):
        [alone] = representer.encode([item])
        assert np.allclose(alone.rows, encoded.rows, atol=1e-3)
        assert alone.neighbours == encoded.neighbours


def test_what_rows_depend_on_is_in_the_fingerprint(opened: Opened) -> None:
    text, one, same, other = (
        opened(novel=seed, name=name)[2].fingerprint
        for name, seed in (("a", None), ("b", 0), ("c", 0), ("d", 1))
    )
    assert one == same
    assert len({text, one, other}) == 3


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("classifiers", np.zeros((5, 3), np.float16), "expected"),
        ("columns", np.array([0, 1, 1, 2, 3]), "is not ascending"),
        ("columns", np.array([0, 1, 2, 3, 60]), "outside the 6 labels"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    opened: Opened, name: str, array: np.ndarray, said: str
) -> None:
    folder = opened()[0].folder
    (folder / f"novel/{name}.npy").unlink()
    np.save(folder / f"novel/{name}.npy", array)
    sign_again(folder)
    with pytest.raises(BundleAltered, match=said):
        open_bundle(folder)


def test_a_combiner_that_is_no_graph_is_refused(opened: Opened) -> None:
    bundle, encoder, _ = opened()
    (bundle.folder / "novel/combiner.onnx").write_bytes(b"no graph")
    sign_again(bundle.folder)
    with pytest.raises(BundleAltered, match="not a graph"):
        open_representer(encoder, open_bundle(bundle.folder))
