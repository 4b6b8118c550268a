"""Items are found by id, text and vector and fused with queries; earlier memories never change."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.items.fusion import fused
from service.core.items.item_memory import ItemMemory
from service.core.text_identity import identity
from service.core.types import NewItem
from tests.support.tiny.items import item_files_of, with_projected
from tests.support.vectors import units

IDS = ["a", "b", "c"]
TEXTS = ["First  Thing", "second thing", "third thing"]


def unit(place: int, dimension: int = 8) -> np.ndarray:
    return np.eye(dimension, dtype=np.float16)[place]


@pytest.fixture
def memory(tmp_path: Path) -> ItemMemory:
    keys = np.stack([unit(0), unit(1), unit(2)])
    return ItemMemory.of(item_files_of(tmp_path, IDS, TEXTS, keys))


def nearest_ids(memory: ItemMemory, vector: np.ndarray, count: int) -> list[str]:
    _, places = memory.nearest(vector[None].astype(np.float32), count)
    return [memory.id_at(place) for place in places]


def test_the_nearest_descend(memory: ItemMemory) -> None:
    query = (unit(1) + 0.5 * unit(2)).astype(np.float32)
    similarities, places = memory.nearest(query[None], 5)
    assert places.tolist() == [1, 2, 0]
    assert similarities.tolist() == [1.0, 0.5, 0.0]


def test_an_item_posted_again_replaces_the_bundles(memory: ItemMemory) -> None:
    changed = memory.put("a", "another thing", *with_projected(unit(5)))
    assert nearest_ids(changed, unit(5), 1) == ["a"]
    assert changed.find_text("first thing") is None
    read = changed.projected(np.array([1, 3]))
    assert np.array_equal(read, [with_projected(unit(place))[1] for place in (1, 5)])
    for number in range(300):
        changed = changed.put("a", f"version {number}", *with_projected(unit(0)))
    assert nearest_ids(changed, unit(0), 9) == ["a", "b", "c"]
    assert (len(changed), changed.dead) == (3, 301)
    smaller = changed.delete("a")
    assert smaller.delete("a") is smaller


def test_of_items_with_one_text_the_first_that_is_left_is_found(memory: ItemMemory) -> None:
    memory = memory.put("d", "SECOND thing", *with_projected(unit(3)))
    memory = memory.put("e", "second  Thing", *with_projected(unit(4)))
    for item_id in ("b", "d", "e"):
        assert memory.find_text("Second Thing") == memory.find(item_id) is not None
        memory = memory.delete(item_id)
    assert memory.find_text("second thing") is None
    assert memory.find_text("Third Thing") == 2


def test_an_item_with_its_own_text_again_has_what_was_learned_for_it(tmp_path: Path) -> None:
    """Undoing a change or a deletion, or replaying it over a newer bundle, loses nothing."""
    keys = np.stack([unit(0), unit(1), unit(2)])
    files = item_files_of(tmp_path, IDS, TEXTS, keys)
    learned = replace(files, projected=files.projected + np.float16(0.5) * unit(7))
    memory = ItemMemory.of(learned)
    for changed in (memory.put("b", "another thing", *with_projected(unit(5))), memory.delete("b")):
        again = changed.put("b", TEXTS[1], *with_projected(unit(1)))
        assert again.find("b") == again.find_text(TEXTS[1]) == 1
        assert np.array_equal(again.projected(np.array([1])), learned.projected[1:2])
        assert (len(again), again.base_dead.count, len(again.posted)) == (3, 0, 0)
        assert [item.id for item in again.page(size=9)] == IDS
        assert nearest_ids(again, unit(1), 1) == ["b"]
        assert np.array_equal(again.as_files().projected, learned.projected)
        gone = again.delete("b")
        assert gone.find("b") is None and "b" not in nearest_ids(gone, unit(1), 3)


def test_a_text_without_id_belongs_to_the_item_with_this_text(memory: ItemMemory) -> None:
    known = memory.identified(NewItem(id="", text="FIRST thing"))
    assert known == NewItem(id="a", text="First  Thing")  # the spelling stays: no change
    assert memory.identified(NewItem(id="x", text="First  Thing")).id == "x"
    new = memory.identified(NewItem(id="", text="A"))
    assert new == NewItem(id="a~2", text="A")  # the id `a` belongs to another text
    larger = memory.put(new.id, new.text, *with_projected(unit(3)))
    assert larger.identified(NewItem(id="", text="a")).id == "a~2"
    assert memory.identified(NewItem(id="", text="\ufdfa" * 2048)).id == identity("\ufdfa" * 2048)


def test_other_queries_do_not_change_how_a_query_is_fused(tmp_path: Path) -> None:
    ids = [str(number) for number in range(20)]
    keys = units(20, seed=1).astype(np.float16)
    memory, queries = ItemMemory.of(item_files_of(tmp_path, ids, ids, keys)), units(9, seed=3)
    together = fused(memory, queries)
    for row in range(len(queries)):
        alone = fused(memory, queries[row : row + 1])
        assert np.array_equal(alone.vectors[0], together.vectors[row])
        assert np.array_equal(alone.similarities[0], together.similarities[row])


def test_without_items_or_queries_nothing_changes(tmp_path: Path) -> None:
    empty = ItemMemory.of(item_files_of(tmp_path, [], [], np.zeros((0, 8), np.float16)))
    queries = units(2, seed=5)
    assert np.array_equal(fused(empty, queries).vectors, queries)
    assert fused(empty, queries[:0]).vectors.shape == (0, 8)
