"""Items put and deleted in a running service change the metadata of the next data set."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import Change, DeleteItem
from service.core.label_log import LabelLog
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.types import NewLabel
from tests.support.changes import click, put, put_item
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.tiny.export import tiny_dataset
from tests.support.tiny.items import ITEMS
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Texts

Learn = Callable[..., Dataset]
KAYAK = NewLabel(id="kayak", text="sea kayak", queries=("boat for one",))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(make_bundle(tmp_path / "items", encoder=TrigramEncoder(), items=ITEMS))


def changes() -> list[Change]:
    return [
        click(1, "mud", "boots"),
        put_item(2, "sleep", "somewhere to sleep"),
        DeleteItem(sequence=3, id="feet"),
        put_item(4, "camp", "camping at night"),
        put(5, KAYAK),
        put_item(6, "gone", "soon"),
        DeleteItem(sequence=7, id="gone"),
    ]


SERVED = {
    "light": "lamp light",
    "water": "water drinks",
    "sleep": "somewhere to sleep",
    "camp": "camping at night",
}


def linked_data() -> Dataset:
    """The tiny data set, with links from all rows and labels to all items."""
    data = tiny_dataset()

    def all_items(rows: int) -> csr_matrix:
        return csr_matrix(np.ones((rows, len(ITEMS)), np.float32))

    split = replace(data.train, metadata_of=all_items(len(data.train)))
    return replace(
        data,
        train=split,
        test=replace(data.test, metadata_of=split.metadata_of),
        label_metadata=all_items(len(data.labels)),
        metadata=Texts(uids=tuple(ITEMS), texts=tuple(ITEMS.values())),
    )


def items(dataset: Dataset) -> dict[str, str]:
    assert dataset.metadata is not None
    return dict(zip(dataset.metadata.uids, dataset.metadata.texts, strict=True))


def check_links(
    dataset: Dataset, texts: Texts, links: csr_matrix | None, *, posted: set[str]
) -> None:
    """Assert that posted texts have no item, and others the remaining items of `linked_data`."""
    assert links is not None and dataset.metadata is not None
    names = dataset.metadata.uids
    for row, text in enumerate(texts.texts):
        found = {names[column] for column in links[row].indices.tolist()}
        assert found == (set() if text in posted else {"light", "water", "camp"}), text
    assert posted <= {*texts.texts}


def test_the_items_that_are_served_are_the_metadata(learn: Learn, bundle: Bundle) -> None:
    learned = learn(*changes(), bundle=bundle)
    assert items(learned) == SERVED
    assert learned.train.metadata_of is not None and not learned.train.metadata_of.nnz
    assert learned.label_metadata is not None and not learned.label_metadata.nnz
    assert ("mud" in learned.train.instances.texts) and ("kayak" in learned.labels.uids)


def test_links_of_the_data_before_stay_by_id(learn: Learn, bundle: Bundle, tmp_path: Path) -> None:
    data = linked_data()
    learned = learn(*changes(), bundle=bundle, data=data)
    assert items(learned) == SERVED
    train, new = learned.train, {"mud", "boat for one"}
    check_links(learned, train.instances, train.metadata_of, posted=new)
    check_links(learned, learned.labels, learned.label_metadata, posted={"sea kayak"})
    lf_xmc.write(learned, tmp_path / "written")
    assert items(lf_xmc.read(tmp_path / "written")) == SERVED


def test_a_snapshot_and_the_rest_of_its_log_have_the_same_items(
    learn: Learn, bundle: Bundle, log: LabelLog, tmp_path: Path
) -> None:
    memory = KnowledgeMemory(bundle)
    learn(*changes(), bundle=bundle)
    view = memory.apply(changes()[:4])
    chain = log.link_at(view.version).chain.hex()
    write_snapshot(view, tmp_path / "snapshot", name="snapshot", log=log.id, log_chain=chain)
    assert items(learn(bundle=open_bundle(tmp_path / "snapshot"))) == SERVED


def test_a_bundle_without_items_has_those_of_its_data_after_the_writes_of_the_log(
    learn: Learn, trigram_bundle: Bundle
) -> None:
    """The items were put while another bundle was served, so only the log has their texts."""
    data = linked_data()
    assert learn(bundle=trigram_bundle, data=data).metadata == data.metadata
    learned = learn(*changes(), bundle=trigram_bundle, data=data)
    assert items(learned) == SERVED
    train, new = learned.train, {"mud", "boat for one"}
    check_links(learned, train.instances, train.metadata_of, posted=new)
    assert learn(bundle=trigram_bundle).metadata is None
