"""Queries are fused with the nearest items or with given ones, one at a time or in batches."""

from pathlib import Path

import numpy as np
import pytest

from service.core.items.fusion import OnnxFusion, fused
from service.core.items.item_memory import ItemMemory
from tests.support.tiny.items import item_files_of
from tests.support.vectors import units


@pytest.fixture
def memory(tmp_path: Path) -> ItemMemory:
    ids = [str(number) for number in range(20)]
    keys = units(20, seed=1).astype(np.float16)
    return ItemMemory.of(item_files_of(tmp_path, ids, ids, keys))


@pytest.fixture
def fusion(memory: ItemMemory) -> OnnxFusion:
    return OnnxFusion(memory.base.files.fusion)


def test_other_queries_do_not_change_a_query(memory: ItemMemory, fusion: OnnxFusion) -> None:
    queries = units(9, seed=3)
    together = fused(memory, fusion, queries)
    for row in range(len(queries)):
        alone = fused(memory, fusion, queries[row : row + 1])
        assert np.array_equal(alone.vectors[0], together.vectors[row])
        assert np.array_equal(alone.similarities[0], together.similarities[row])


def test_without_items_or_queries_nothing_changes(tmp_path: Path) -> None:
    empty = ItemMemory.of(item_files_of(tmp_path, [], [], np.zeros((0, 8), np.float16)))
    fusion, queries = OnnxFusion(tmp_path), units(2, seed=5)
    assert np.array_equal(fused(empty, fusion, queries).vectors, queries)
    assert fused(empty, fusion, queries[:0]).vectors.shape == (0, 8)
