"""The items that a row is linked to, and data sets without items."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random

from service.core.errors import InvalidInput
from tests.support.tiny.training import tiny_dataset, with_colour_metadata
from training.datasets.dataset import Texts
from training.datasets.metadata_links import (
    NO_ITEM,
    all_linked,
    item_frequency,
    linked_items,
    require_metadata,
)

LINKS = csr_matrix(np.array([[1, 1, 1], [0, 0, 0], [1, 0, 0]], np.float32))


def test_the_rarest_linked_items_come_first() -> None:
    assert item_frequency(LINKS).tolist() == [2, 1, 1]
    places = linked_items(LINKS, np.array([9, 1, 5]), count=2)
    assert places.tolist() == [[1, 2], [NO_ITEM, NO_ITEM], [0, NO_ITEM]]


@pytest.mark.parametrize("count", [1, 3, 40])
def test_they_are_those_of_a_loop_over_rows(count: int) -> None:
    links = csr_matrix(random(50, 30, density=0.2, rng=np.random.default_rng(3)) != 0)
    frequency = item_frequency(links)
    for row, places in enumerate(linked_items(links, frequency, count=count).tolist()):
        ranked = sorted(links[row].indices.tolist(), key=lambda item: (frequency[item], item))
        found = ranked[:count]
        assert places == found + [NO_ITEM] * (count - len(found))


def test_all_links_of_a_row_are_told_by_how_rare_they_are_in_training() -> None:
    dataset = with_colour_metadata(tiny_dataset())
    assert all_linked(dataset.test.metadata_of, dataset).shape == (16, 1)
    assert all_linked(LINKS[1:2], dataset).tolist() == [[NO_ITEM]]


def test_data_without_metadata_are_told_who_needs_some() -> None:
    dataset = with_colour_metadata(tiny_dataset())
    assert require_metadata(dataset, reader="it reads") is dataset.metadata
    nothing = Texts(uids=(), texts=())
    with pytest.raises(InvalidInput, match="it reads metadata items, and data set colours has non"):
        require_metadata(tiny_dataset(), reader="it reads")
    links = csr_matrix((48, 0)), csr_matrix((16, 0)), csr_matrix((16, 0))
    empty = replace(
        dataset,
        metadata=nothing,
        train=replace(dataset.train, metadata_of=links[0]),
        test=replace(dataset.test, metadata_of=links[1]),
        label_metadata=links[2],
    )
    with pytest.raises(InvalidInput, match="has none"):
        require_metadata(empty, reader="it reads")
