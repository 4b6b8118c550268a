"""Metadata is appended to queries, labels or both, the rarest items first."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from tests.support.tiny.training import tiny_dataset, with_colour_metadata
from training.datasets.dataset import Texts
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


def test_a_data_set_without_metadata_is_refused() -> None:
    said = "append = 'both' reads metadata items, and data set colours has none"
    with pytest.raises(InvalidInput, match=said):
        with_metadata(tiny_dataset(), MetadataSettings(append="both"))
