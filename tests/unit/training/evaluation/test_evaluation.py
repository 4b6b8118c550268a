"""Offline, the items of a bundle's queries are looked up by id, the rarest first."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.items.item_memory import ItemMemory
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.tiny.items import tiny_items
from tests.support.tiny.training import ADJECTIVES, tiny_dataset, with_colour_metadata
from training.datasets.dataset import Dataset
from training.evaluation.evaluation import linked_places

ITEMS = {word: f"is {word}" for word in reversed(ADJECTIVES)}


@pytest.fixture
def memory(tmp_path: Path) -> ItemMemory:
    return ItemMemory.of(tiny_items(tmp_path, TrigramEncoder(), ITEMS))


@pytest.fixture
def dataset() -> Dataset:
    """The tiny data set; its second test row has no item, its third one has all."""
    data = with_colour_metadata(tiny_dataset())
    links = data.test.metadata_of.toarray()
    links[1], links[2] = 0.0, 1.0
    return replace(data, test=replace(data.test, metadata_of=csr_matrix(links)))


def test_items_are_found_by_id(memory: ItemMemory, dataset: Dataset) -> None:
    places = linked_places(memory, dataset)
    assert len(places) == len(dataset.test)
    adjective = dataset.test.instances.texts[0].split()[0]
    assert [memory.id_at(place) for place in places[0].tolist()] == [adjective]
    assert places[1].tolist() == []
    frequency = np.asarray(dataset.train.metadata_of.sum(axis=0)).ravel()
    rarest_first = sorted(range(len(ADJECTIVES)), key=lambda item: (frequency[item], item))
    ids = [memory.id_at(place) for place in places[2].tolist()]
    assert ids == [ADJECTIVES[item] for item in rarest_first]


def test_what_stands_in_the_way_is_said(memory: ItemMemory, dataset: Dataset) -> None:
    with pytest.raises(InvalidInput, match="with an item memory; this one has none"):
        linked_places(None, dataset)
    with pytest.raises(InvalidInput, match="--items linked gives metadata items, and data set"):
        linked_places(memory, tiny_dataset())
    with pytest.raises(InvalidInput, match="has no item with the id 'red', to which"):
        linked_places(memory.delete("red"), dataset)
