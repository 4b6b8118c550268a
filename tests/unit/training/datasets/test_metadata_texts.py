"""Rows are linked to items, which are appended to texts; the rarest items come first."""

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
from training.datasets.metadata_texts import MetadataSettings, with_metadata


def test_texts_get_their_items_behind_a_delimiter() -> None:
    dataset = with_colour_metadata(tiny_dataset())
    fused = with_metadata(dataset, MetadataSettings(append="both", delimiter=" / "))
    for side in ("train", "test"):
        plain, split = getattr(dataset, side), getattr(fused, side)
        first = plain.instances.texts[0]
        assert split.instances.texts[0] == f"{first} / is {first.split()[0]}"
        assert split.instances.uids == plain.instances.uids
    assert fused.labels.texts[0] == f"{dataset.labels.texts[0]} / is {dataset.labels.texts[0]}"
    assert fused.labels.texts[-1] == dataset.labels.texts[-1], "a label without metadata stays"


@pytest.mark.parametrize("side", ["queries", "labels", "none"])
def test_only_the_named_side_is_changed(side: str) -> None:
    dataset = with_colour_metadata(tiny_dataset())
    fused = with_metadata(dataset, MetadataSettings(append=side))  # type: ignore[arg-type]
    assert (fused.train.instances.texts != dataset.train.instances.texts) == (side == "queries")
    assert (fused.labels.texts != dataset.labels.texts) == (side == "labels")


def test_of_many_items_the_rarest_are_kept_first() -> None:
    dataset = tiny_dataset()
    rows, labels = len(dataset.train), len(dataset.labels)
    of_rows = np.zeros((rows, 3), np.float32)
    of_rows[:, 0] = 1.0  # every row has the first item
    of_rows[:2, 1] = 1.0
    of_rows[0, 2] = 1.0
    dataset = replace(
        dataset,
        train=replace(dataset.train, metadata_of=csr_matrix(of_rows)),
        test=replace(
            dataset.test, metadata_of=csr_matrix((len(dataset.test), 3), dtype=np.float32)
        ),
        label_metadata=csr_matrix((labels, 3), dtype=np.float32),
        metadata=Texts(uids=("a", "b", "c"), texts=("common", "rarer", "rarest")),
    )
    fused = with_metadata(dataset, MetadataSettings(append="queries", items=2, delimiter=" / "))
    first = dataset.train.instances.texts[0]
    assert fused.train.instances.texts[0] == f"{first} / rarest / rarer"


LINKS = csr_matrix(np.array([[1, 1, 1], [0, 0, 0], [1, 0, 0]], np.float32))


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
    said = "metadata items, and data set colours has none"
    with pytest.raises(InvalidInput, match=f"it reads {said}"):
        require_metadata(tiny_dataset(), reader="it reads")
    with pytest.raises(InvalidInput, match=f"append = 'both' reads {said}"):
        with_metadata(tiny_dataset(), MetadataSettings(append="both"))
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
