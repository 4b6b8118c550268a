"""The item memory's files in a bundle: written, opened, and refused where they do not fit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle import item_files, manifest
from service.core.bundle.bundle import open_bundle
from service.core.bundle.content import BundleContent
from service.core.errors import BundleAltered, BundleUnsupported
from tests.support.tiny.bundles import make_bundle, sign_again
from tests.support.tiny.items import ITEMS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle", items=ITEMS)


def test_a_bundle_keeps_its_items(folder: Path) -> None:
    items = open_bundle(folder).items
    assert items is not None
    assert list(items.ids) == list(ITEMS)
    assert list(items.texts) == list(ITEMS.values())
    assert items.keys.shape == (len(ITEMS), 16)
    assert items.projected.shape == (len(ITEMS), 2, 16)
    assert (items.facts.items, items.facts.attended) == (len(ITEMS), 2)


def test_a_bundle_without_items_has_nothing_of_them(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle")
    assert open_bundle(folder).items is None
    assert not (folder / "items").exists()
    assert "items" not in (folder / "manifest.json").read_text()


def test_other_rows_keep_the_items(folder: Path) -> None:
    bundle = open_bundle(folder)
    content = BundleContent.like(
        bundle,
        name="other",
        keys=bundle.keys,
        indptr=bundle.indptr,
        indices=bundle.indices,
        instance_texts=list(bundle.instance_texts),
        label_ids=list(bundle.label_ids),
        label_texts=list(bundle.label_texts),
        metrics={},
    )
    assert content.items is bundle.items


@pytest.mark.parametrize("name", [item_files.KEYS, item_files.PROJECTED])
def test_vectors_of_another_shape_are_refused(folder: Path, name: str) -> None:
    np.save(folder / name, np.zeros((len(ITEMS), 3), np.float16))
    sign_again(folder)
    with pytest.raises(BundleAltered, match=name):
        open_bundle(folder)


@pytest.mark.parametrize("graph", [item_files.PROJECT, item_files.FUSE])
def test_a_missing_graph_is_named(folder: Path, graph: str) -> None:
    (folder / item_files.FUSION / graph).unlink()
    sign_again(folder)
    with pytest.raises(BundleAltered, match=f"{graph} is missing"):
        open_bundle(folder)


def test_items_of_the_first_format_are_refused_with_what_to_do(folder: Path) -> None:
    facts = manifest.read(folder)
    assert facts.items is not None and facts.items.format == item_files.FORMAT
    manifest.write(replace(facts, items=replace(facts.items, format=1)), folder)
    with pytest.raises(BundleUnsupported, match=r"items in format 1.*export encoder and bundle"):
        open_bundle(folder)


def test_the_fingerprint_identifies_the_fusion_and_not_the_items(folder: Path) -> None:
    facts = replace(open_bundle(folder).manifest.items, items=9)
    fusion = folder / item_files.FUSION
    again = item_files.with_fingerprint(facts, fusion).fingerprint
    assert again == facts.fingerprint
    assert item_files.with_fingerprint(replace(facts, attended=3), fusion).fingerprint != again
