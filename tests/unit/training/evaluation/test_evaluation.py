"""Offline, items are looked up by id, the rarest first, and rules act as in the service."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.core.bundle.bundle import Bundle
from service.core.errors import InvalidInput
from service.core.items.item_memory import ItemMemory
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.rules import Rule
from service.core.types import PredictOptions, Role
from tests.support.changes import put_rule
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.tiny.items import tiny_items
from tests.support.tiny.training import ADJECTIVES, tiny_dataset, with_colour_metadata
from training.datasets.dataset import Dataset
from training.evaluation.evaluation import Evaluation, linked_places

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


def test_rules_of_a_snapshot_act_on_test_rows(trigram_bundle: Bundle) -> None:
    memory, encoder = KnowledgeMemory(trigram_bundle), TrigramEncoder()
    texts = ["light tent for the trail"]

    def ranked() -> list[int]:
        evaluation = Evaluation(
            view=memory.view,
            predictor=Predictor(encoder, tau=0.1),
            dataset=cast(Dataset, None),
            texts=texts,
            vectors=encoder.embed(encoder.tokenize(texts, role=Role.QUERY)),
            options=PredictOptions(top_k=5, exact=True),
            report=lambda *_: None,
        )
        columns: list[int] = evaluation.ranked(evaluation.retrieve(None), 0.5).labels[0].tolist()
        return columns

    first, second, *_ = ranked()
    hidden = memory.view.labels.id_at(first)
    memory.apply([put_rule(1, Rule(id="r", hide=(hidden,)))])
    assert ranked()[0] == second
