"""An index over many items finds what a scan finds, also after items were put or deleted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.bundle import content
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.content import ITEM_RECALL
from service.core.bundle.item_files import INDEX, ItemFiles
from service.core.errors import BundleAltered
from service.core.index.libraries import IndexParameters
from service.core.items.item_memory import ItemMemory
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.page_cursor import FIRST_PAGE, PageCursor
from tests.support.tiny.bundles import make_bundle, sign_again
from tests.support.tiny.items import item_files_of, with_projected
from tests.support.vectors import units

ITEMS = {f"item {number}": f"text {number} of {number % 7}" for number in range(2_400)}
DIMENSION = 16  # the tiny encoder's


def bundle_of(folder: Path, items: int) -> Bundle:
    """A bundle with `items` items, whose keys are random."""
    facts = IndexParameters(m=16, ef_construction=100, ef=64)
    view = KnowledgeMemory(open_bundle(make_bundle(folder / "plain", index=facts))).view
    keys, ids = units(items, DIMENSION, seed=1).astype(np.float16), list(ITEMS)[:items]
    files = item_files_of(folder, ids, [ITEMS[item_id] for item_id in ids], keys)
    view = replace(view, items=ItemMemory.of(files))
    write_snapshot(view, folder / "bundle", name="bundle", log="")
    return open_bundle(folder / "bundle")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(tmp_path_factory.mktemp("many"), len(ITEMS))


def files_of(bundle: Bundle) -> ItemFiles:
    assert bundle.items is not None
    return bundle.items


@pytest.fixture
def indexed(bundle: Bundle) -> ItemMemory:
    return ItemMemory.of(files_of(bundle))


@pytest.fixture
def scanned(bundle: Bundle) -> ItemMemory:
    return ItemMemory.of(replace(files_of(bundle), index=None))


def test_many_items_get_an_index_whose_recall_is_measured(bundle: Bundle) -> None:
    facts = files_of(bundle).facts.index
    assert facts is not None and facts.recall >= ITEM_RECALL
    assert (bundle.folder / INDEX).exists()
    manifest = orjson.loads((bundle.folder / "manifest.json").read_bytes())
    assert manifest["items"]["index"]["ef"] == facts.ef
    assert INDEX in manifest["files"]


@pytest.mark.parametrize(
    ("items", "recall"), [(content.INDEXED_ITEMS - 1, ITEM_RECALL), (len(ITEMS), 1.01)]
)
def test_few_items_have_none_and_a_graph_that_misses_too_much_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, items: int, recall: float
) -> None:
    monkeypatch.setattr(content, "ITEM_RECALL", recall)
    without = bundle_of(tmp_path, items)
    assert files_of(without).index is None
    assert not (without.folder / INDEX).exists()


def changed(memory: ItemMemory) -> ItemMemory:
    """Delete and replace some of the bundle's items, put new ones, and delete one of these."""
    for number in range(0, 600, 3):
        memory = memory.delete(f"item {number}")
    for number, vector in enumerate(units(150, DIMENSION, seed=5).astype(np.float16)):
        memory = memory.put(f"item {number + 500}", f"replaced {number}", *with_projected(vector))
        memory = memory.put(f"new {number}", f"new text {number}", *with_projected(vector))
    return memory.delete("new 7")


@pytest.mark.parametrize("change", [lambda memory: memory, changed])
def test_what_the_index_finds_has_the_bits_and_the_order_of_a_scan(
    indexed: ItemMemory, scanned: ItemMemory, change: object
) -> None:
    indexed, scanned = change(indexed), change(scanned)
    found = 0
    for query in units(200, DIMENSION, seed=3):
        exact = dict(zip(*reversed(scanned.nearest(query[None], 40)), strict=True))
        similarities, places = indexed.nearest(query[None], indexed.attended)
        of_scan = [place for place in exact if place in set(places.tolist())]
        assert [place for place in places.tolist() if place in exact] == of_scan
        assert all(exact.get(p, s) == s for s, p in zip(similarities, places, strict=True))
        found += len(set(list(exact)[: indexed.attended]) & set(places.tolist()))
    assert found >= 0.95 * 200 * indexed.attended


def test_puts_and_deletes_count_at_once(indexed: ItemMemory) -> None:
    query = units(1, DIMENSION, seed=9)
    memory = indexed.put("mine", "my own text", *with_projected(query[0].astype(np.float16)))
    assert memory.id_at(memory.nearest(query, 1)[1][0]) == "mine"
    nearest = [indexed.id_at(place) for place in indexed.nearest(query, 50)[1]]
    for item_id in nearest[:40]:
        memory = memory.delete(item_id)
    left = [memory.id_at(place) for place in memory.nearest(query, 10)[1]]
    assert not set(left) & set(nearest[:40])
    assert left[0] == "mine"
    for item_id in list(ITEMS)[1:]:
        memory = memory.delete(item_id)
    assert [memory.id_at(place) for place in memory.nearest(query, 3)[1]] == ["mine", "item 0"]
    assert len(memory.delete("item 0").delete("mine").nearest(query, 3)[1]) == 0
    assert [indexed.id_at(place) for place in indexed.nearest(query, 50)[1]] == nearest


def test_pages_walk_through_all_items_in_order_of_id(indexed: ItemMemory) -> None:
    memory, ids, after = changed(indexed), [], FIRST_PAGE
    while page := memory.page(after=after, size=170):
        ids += [item.id for item in page]
        after = PageCursor.behind(ids[-1])
    assert len(ids) == len(memory)
    assert ids == sorted(set(ids))
    assert all(memory.find(item_id) is not None for item_id in ids)


def test_a_snapshot_without_changes_keeps_the_index(bundle: Bundle, tmp_path: Path) -> None:
    view = KnowledgeMemory(bundle).view
    write_snapshot(view, tmp_path / "same", name="same", log="")
    again = files_of(open_bundle(tmp_path / "same"))
    assert again.facts == files_of(bundle).facts
    assert (tmp_path / "same" / INDEX).read_bytes() == (bundle.folder / INDEX).read_bytes()


def test_a_snapshot_of_changed_items_builds_it_anew(bundle: Bundle, tmp_path: Path) -> None:
    view = KnowledgeMemory(bundle).view
    assert view.items is not None
    view = replace(view, items=changed(view.items))
    write_snapshot(view, tmp_path / "changed", name="changed", log="")
    files = files_of(open_bundle(tmp_path / "changed"))
    assert files.index is not None
    assert files.index.segment.rows == len(files.ids) == len(view.items)
    query = units(1, DIMENSION, seed=5)
    before = [view.items.id_at(place) for place in view.items.nearest(query, 2)[1]]
    opened = ItemMemory.of(files)
    assert [opened.id_at(place) for place in opened.nearest(query, 2)[1]] == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "lists no file items/keys.index"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "keys.index"),
        (lambda path: path.write_bytes(b"no index"), "faiss can read"),
    ],
)
def test_a_damaged_index_is_named(
    bundle: Bundle, tmp_path: Path, damage: object, message: str
) -> None:
    write_snapshot(KnowledgeMemory(bundle).view, tmp_path / "copy", name="copy", log="")
    damage(tmp_path / "copy" / INDEX)
    sign_again(tmp_path / "copy")
    with pytest.raises(BundleAltered, match=message):
        open_bundle(tmp_path / "copy")


def test_an_index_of_other_items_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    other = bundle_of(tmp_path, 2_100)
    (other.folder / INDEX).write_bytes((bundle.folder / INDEX).read_bytes())
    sign_again(other.folder)
    with pytest.raises(BundleAltered, match="2400 distinct keys"):
        open_bundle(other.folder)
