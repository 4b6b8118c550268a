"""A bundle's optional parts (items, reranker, label details) are read as they were written."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.bundle import item_files, reranker_files
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.content import BundleContent
from service.core.bundle.label_details import Details, LabelDetails, dump, parse
from service.core.bundle.reranker_files import TREES
from service.core.files import text_store
from service.core.files.text_store import TextStore
from tests.support.tiny.bundles import LABELS, make_bundle
from tests.support.tiny.items import ITEMS


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(
        make_bundle(tmp_path_factory.mktemp("parts") / "bundle", items=ITEMS, reranked=5)
    )


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


def test_other_rows_keep_the_items_and_the_reranker(bundle: Bundle) -> None:
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
    assert content.items is bundle.items and content.reranker is bundle.reranker


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


def test_a_label_without_details_has_an_empty_text() -> None:
    assert dump(Details()) == ""
    assert LabelDetails(None).at(5) == Details()
    assert LabelDetails(None).novel_columns() == []


def test_novel_labels_are_listed_by_column(tmp_path: Path) -> None:
    written = [Details(), Details(novel=True), Details(version=3), Details(novel=True, version=4)]
    text_store.write(tmp_path / "details", [dump(details) for details in written])
    assert LabelDetails(TextStore(tmp_path / "details")).novel_columns() == [1, 3]


@given(details)
def test_parse_returns_what_was_dumped(written: Details) -> None:
    text = dump(written)
    assert (parse(text) if text else Details()) == written
