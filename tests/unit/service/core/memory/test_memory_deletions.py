"""A deleted label is gone with its rows and votes; posted again, it is a new label."""

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.types import NewLabel, RowKind
from tests.support.changes import click, delete, put
from tests.support.tiny.bundles import LABELS
from tests.support.views import described_rows, retrieved_texts, voting_texts

KAYAK = NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))
TENT = NewLabel(id="tent", text="dome tent", queries=("tent for winter",))


@pytest.fixture
def memory(trigram_bundle: Bundle) -> KnowledgeMemory:
    return KnowledgeMemory(trigram_bundle, MemoryLimits(seal_rows=3))


def test_a_deleted_label_is_gone_with_its_rows(memory: KnowledgeMemory) -> None:
    memory.apply([put(1, KAYAK)])
    view = memory.apply([delete(2, "kayak")])
    assert view.labels.get("kayak") is None
    assert described_rows(view) == described_rows(KnowledgeMemory(view.bundle).view)
    assert (view.version, view.live_rows, view.dead_rows) == (2, 3, 3)
    assert retrieved_texts(view, "sea kayak", kind=RowKind.LABEL)[0] != "sea kayak"


def test_instances_of_the_bundle_that_voted_only_for_a_deleted_label_are_gone(
    memory: KnowledgeMemory,
) -> None:
    """ "light for a tent" also voted for the lamp; "nothing was clicked" never had a vote."""
    view = memory.apply([delete(1, "tent")])
    texts = [text for _, text, _ in described_rows(view)]
    assert not {"camping tent", "shelter for two"} & set(texts)
    assert {"light for a tent", "nothing was clicked"} <= set(texts)
    assert voting_texts(view, "lamp") == ["light for a tent", "head lamp"]
    assert (view.dead_rows, len(view.labels)) == (2, len(LABELS) - 1)
    last = memory.apply([delete(2, "lamp")])
    assert "light for a tent" not in retrieved_texts(last, "light for a tent")
    assert last.dead_rows == 4


def test_a_deleted_label_that_is_posted_again_starts_anew(memory: KnowledgeMemory) -> None:
    """Its old votes do not come back, and it is novel: the encoder was not trained on it."""
    memory.apply([click(1, "igloo", "tent", "lamp"), delete(2, "tent")])
    view = memory.apply([put(3, TENT)])
    tent = view.labels.require("tent")
    assert (tent.index, tent.novel, tent.version) == (len(LABELS), True, 3)
    assert voting_texts(view, "tent") == ["dome tent", "tent for winter"]
    assert voting_texts(view, "lamp") == ["light for a tent", "head lamp", "igloo"]
    again = memory.apply([delete(4, "tent"), put(5, NewLabel(id="tent", text="tarp"))])
    assert again.labels.require("tent").index == len(LABELS) + 1
    assert voting_texts(again, "tent") == ["tarp"]


def test_a_label_can_be_posted_and_deleted_within_one_apply(memory: KnowledgeMemory) -> None:
    before = described_rows(memory.view)
    view = memory.apply([put(1, KAYAK), click(2, "rowing", "kayak"), delete(3, "kayak")])
    assert described_rows(view) == before
    assert (view.live_rows, view.dead_rows) == (4, 4)


def test_deleting_an_unknown_label_changes_only_the_version(
    memory: KnowledgeMemory,
) -> None:
    before = memory.view
    view = memory.apply([delete(1, "kayak"), delete(2, "tent"), delete(3, "tent")])
    assert (view.version, view.dead_rows) == (3, 2)
    assert len(before.labels) == len(view.labels) + 1


def test_votes_for_a_deleted_label_are_left_out(memory: KnowledgeMemory) -> None:
    view = memory.apply([delete(1, "boots")])
    columns, counts = view.votes(np.array([1, 3, 7, 0]))  # [trail, light, winter boots, shoes]
    assert columns.tolist() == [3, 2, 5, 3]
    assert counts.tolist() == [1, 2, 0, 1]
