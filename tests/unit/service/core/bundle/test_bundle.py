"""A complete bundle opens; if a file is missing or damaged, the error names it."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.bundle import item_files, reranker_files
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.label_details import Details, LabelDetails, dump, parse
from service.core.bundle.reranker_files import TREES
from service.core.errors import BundleAltered, BundleMissing, InvalidInput
from service.core.files import text_store
from service.core.files.text_store import TextStore
from service.core.index.libraries import LIBRARIES, IndexParameters, load_library
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue
from tests.support.tiny.bundles import make_bundle as write
from tests.support.tiny.items import ITEMS

FILES = (
    "encoder.onnx",
    "tokenizer.json",
    "keys.npy",
    "segments/base.index",
    "values/indptr.npy",
    "values/indices.npy",
    "instances/texts.bin",
    "instances/texts.offsets.npy",
    "labels/ids.bin",
    "labels/ids.offsets.npy",
    "labels/ids.order.npy",
    "labels/texts.bin",
    "labels/texts.offsets.npy",
    "words/words.bin",
    "words/words.offsets.npy",
    "words/indptr.npy",
    "words/rows.npy",
    "words/bigrams.npy",
    "words/bigram_indptr.npy",
    "words/bigram_words.npy",
)


DETAILS = ("labels/details.bin", "labels/details.offsets.npy")
TENT = Details(queries=("igloo",), metadata={"bid": "0.30"}, novel=True, version=7, rows=(2,))


@pytest.fixture(scope="module")
def detailed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with one label that has details; do not change it."""
    texts = [dump(TENT) if label_id == "tent" else "" for label_id in LABELS]
    folder = tmp_path_factory.mktemp("bundles") / "detailed"
    return write(folder, label_details=texts, version=7, log="0f" * 16)


def test_an_opened_bundle_has_the_written_content(make_bundle: Callable[..., Path]) -> None:
    bundle = open_bundle(make_bundle(name="outdoor", tau=0.07, depth=12))
    facts = bundle.manifest
    assert (facts.name, facts.dataset) == ("outdoor", "outdoor goods")
    assert (facts.predictor.tau, facts.predictor.depth) == (0.07, 12)
    assert (bundle.instances, bundle.labels) == (len(INSTANCES), len(LABELS))
    assert list(bundle.instance_texts) == list(INSTANCES)
    assert list(bundle.label_ids) == list(LABELS)
    assert list(bundle.label_texts) == list(LABELS.values())
    assert [bundle.label_ids.find(label_id) for label_id in LABELS] == list(range(len(LABELS)))
    assert (facts.version, facts.memory.version, facts.log) == (1, 0, "")
    assert bundle.label_details.at(0) == Details()
    assert bundle.keys.dtype == np.float16
    assert np.linalg.norm(bundle.keys.astype(np.float32), axis=1) == pytest.approx(1, abs=2e-3)
    assert bundle.segment.rows == len(INSTANCES) + len(LABELS)
    rows = np.split(np.asarray(bundle.indices), np.asarray(bundle.indptr)[1:-1])
    assert [row.tolist() for row in rows] == Catalogue().votes()


def test_the_manifest_lists_every_file_and_none_holds_a_path_of_the_machine(
    tiny_bundle_folder: Path,
) -> None:
    paths = [path for path in tiny_bundle_folder.rglob("*") if path.is_file()]
    written = {str(path.relative_to(tiny_bundle_folder)) for path in paths}
    assert written == {*FILES, "manifest.json"}
    for path in paths:
        assert str(tiny_bundle_folder.parent).encode() not in path.read_bytes()
    assert set(open_bundle(tiny_bundle_folder).manifest.files) == set(FILES)


def test_label_details_are_read_by_column(detailed: Path) -> None:
    bundle = open_bundle(detailed)
    details = [bundle.label_details.at(column) for column in range(len(LABELS))]
    assert details == [TENT if label_id == "tent" else Details() for label_id in LABELS]
    assert set(bundle.manifest.files) == {*FILES, *DETAILS}
    assert (bundle.manifest.memory.version, bundle.manifest.log) == (7, "0f" * 16)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_bundle_may_be_indexed_by_any_library(
    make_bundle: Callable[..., Path], library: str
) -> None:
    if find_spec(library.partition("-")[0]) is None:
        pytest.skip(f"{library} is not installed")
    parameters = IndexParameters(library=library, m=8, ef_construction=40, ef=64)
    index = open_bundle(make_bundle(index=parameters)).manifest.index
    assert index.parameters() == parameters
    assert index.builder == load_library(library).builder()


# Damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FILES, *DETAILS])
def test_a_damaged_or_missing_file_is_named(detailed: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(detailed, tmp_path / "bundle"))
    content = (copy / name).read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0x10
    for damaged in (content[:-1], flipped):
        (copy / name).write_bytes(damaged)
        with pytest.raises(BundleAltered, match=re.escape(name)):
            open_bundle(copy)
    (copy / name).unlink()
    with pytest.raises(BundleMissing, match=re.escape(name)):
        open_bundle(copy)
    (copy / name).mkdir()
    with pytest.raises(BundleMissing, match=re.escape(name)):
        open_bundle(copy)


def test_a_path_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(BundleMissing, match=r"manifest\.json is missing: .*is not a bundle"):
            open_bundle(place)


# Writing ---------------------------------------------------------------------------------


def test_an_existing_target_is_refused(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    with pytest.raises(InvalidInput, match="exists already"):
        make_bundle()
    assert list((tmp_path / "bundle").iterdir()) == []


def test_a_failure_while_writing_leaves_no_files(
    make_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(load_library("faiss"), "build", die)
    with pytest.raises(KeyboardInterrupt):
        make_bundle()
    assert list(tmp_path.iterdir()) == []


# Optional parts --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(write(tmp_path_factory.mktemp("parts") / "bundle", items=ITEMS, reranked=5))


def test_a_bundle_keeps_its_items(bundle: Bundle) -> None:
    items = bundle.items
    assert items is not None
    assert list(items.ids) == list(ITEMS)
    assert list(items.texts) == list(ITEMS.values())
    assert items.keys.shape == (len(ITEMS), 16)
    assert items.projected.shape == (len(ITEMS), 2, 16)
    assert (items.facts.items, items.facts.attended) == (len(ITEMS), 2)
    others = [replace(items.facts, items=9), replace(items.facts, attended=3)]
    prints = [item_files.with_fingerprint(facts, items.fusion).fingerprint for facts in others]
    assert prints[0] == items.facts.fingerprint != prints[1]  # of the fusion, not of the items


def test_a_bundle_keeps_its_reranker_whose_fingerprint_is_of_facts_trees_and_words(
    bundle: Bundle,
) -> None:
    files = bundle.reranker
    assert files is not None
    assert (files.facts.candidates, len(files.facts.features)) == (5, 23)
    words = {word for text in LABELS.values() for word in text.split()}
    assert len(files.words) == len(files.rarity) == len(words)
    assert files.trees == bundle.folder / TREES
    assert reranker_files.with_fingerprint(files).facts == files.facts
    others = [
        replace(files, facts=replace(files.facts, candidates=6)),
        replace(files, words=files.words + np.uint64(1)),
        replace(files, rarity=files.rarity * 2.0),
        replace(files, trees=bundle.folder / "encoder.onnx"),
    ]
    prints = {reranker_files.with_fingerprint(one).facts.fingerprint for one in (files, *others)}
    assert len(prints) == len(others) + 1


# Label details --------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
details = st.builds(
    Details,
    queries=st.lists(texts, max_size=3).map(tuple),
    metadata=st.dictionaries(texts, texts, max_size=3),
    novel=st.booleans(),
    version=st.integers(min_value=0, max_value=2**53),
    rows=st.lists(st.integers(min_value=0, max_value=2**40), max_size=3).map(tuple),
)


def test_the_document_of_a_label() -> None:
    tent = Details(queries=("igloo",), metadata={"bid": "1"}, novel=True, version=17, rows=(3,))
    assert dump(tent) == (
        '{"queries":["igloo"],"metadata":{"bid":"1"},"novel":true,"version":17,"rows":[3]}'
    )


def test_labels_may_have_no_details_and_novel_ones_are_listed_by_column(tmp_path: Path) -> None:
    assert dump(Details()) == ""
    assert LabelDetails(None).at(5) == Details()
    assert LabelDetails(None).novel_columns() == []
    written = [Details(), Details(novel=True), Details(version=3), Details(novel=True, version=4)]
    text_store.write(tmp_path / "details", [dump(details) for details in written])
    assert LabelDetails(TextStore(tmp_path / "details")).novel_columns() == [1, 3]


@given(details)
def test_parse_returns_what_was_dumped(written: Details) -> None:
    text = dump(written)
    assert (parse(text) if text else Details()) == written
