"""Posted queries: each has one row, which votes for all labels ever clicked for it."""

from dataclasses import replace

import pytest

from service.core.bundle.bundle import Bundle
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.row_ownership import NEWEST_QUERIES
from service.core.types import NewLabel, RowKind
from tests.support.changes import click, delete, put
from tests.support.tiny.bundles import LABELS
from tests.support.views import alive_rows, described_rows, retrieved_texts, voting_texts

KAYAK = NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))
TENT = NewLabel(id="tent", text="dome tent", queries=("tent for winter",))


@pytest.fixture
def memory(trigram_bundle: Bundle) -> KnowledgeMemory:
    return KnowledgeMemory(trigram_bundle, MemoryLimits(seal_rows=3))


def test_a_posted_query_votes_for_all_its_labels_with_one_row(memory: KnowledgeMemory) -> None:
    view = memory.apply([click(1, "igloo", "tent", "lamp")])
    assert described_rows(view)[-1] == (RowKind.INSTANCE, "igloo", ("lamp", "tent"))
    assert view.live_rows == 1
    assert retrieved_texts(view, "igloo")[0] == "igloo"
    assert "igloo" not in retrieved_texts(view, "igloo", kind=RowKind.LABEL)


def test_a_query_that_is_posted_again_votes_for_old_and_new_labels(memory: KnowledgeMemory) -> None:
    memory.apply([click(1, "igloo", "tent")])
    view = memory.apply([click(2, "igloo", "lamp")])
    assert described_rows(view)[-1] == (RowKind.INSTANCE, "igloo", ("lamp", "tent"))
    assert (view.live_rows, view.dead_rows) == (2, 1)


def test_a_post_that_adds_nothing_changes_nothing(memory: KnowledgeMemory) -> None:
    before = memory.apply([click(1, "igloo", "tent", "lamp")])
    view = memory.apply([click(2, "igloo", "lamp"), click(3, "sled", "unheard of")])
    assert alive_rows(view).tolist() == alive_rows(before).tolist()
    assert (view.version, view.live_rows, view.dead_rows) == (3, 1, 0)


def test_a_clicks_row_is_gone_with_its_last_label(memory: KnowledgeMemory) -> None:
    memory.apply([put(1, KAYAK), click(2, "sports", "kayak", "tent")])
    view = memory.apply([delete(3, "tent")])
    assert voting_texts(view, "kayak")[-1] == "sports"
    assert memory.draft().votes_of("sports") == (len(LABELS),)
    view = memory.apply([delete(4, "kayak")])
    assert "sports" not in retrieved_texts(view, "sports")
    assert memory.draft().votes_of("sports") == ()


def test_a_click_after_a_deletion_does_not_bring_the_deleted_back(memory: KnowledgeMemory) -> None:
    memory.apply([click(1, "sports", "boots", "tent"), delete(2, "tent"), put(3, TENT)])
    view = memory.apply([click(4, "sports", "lamp")])
    assert described_rows(view)[-1] == (RowKind.INSTANCE, "sports", ("boots", "lamp"))


def test_replacing_a_label_keeps_its_clicks_and_not_its_own_queries(
    memory: KnowledgeMemory,
) -> None:
    memory.apply([put(1, KAYAK), click(2, "paddle", "kayak")])
    view = memory.apply([put(3, replace(KAYAK, text="river kayak", queries=()))])
    assert voting_texts(view, "kayak") == ["paddle", "river kayak"]


def test_a_label_knows_the_newest_of_its_queries_and_their_number(memory: KnowledgeMemory) -> None:
    queries = [f"query {number}" for number in range(NEWEST_QUERIES + 5)]
    memory.apply([click(place, query, "tent") for place, query in enumerate(queries, start=1)])
    view = memory.apply([click(200, "query 3", "tent", "lamp"), click(201, "query 4", "tent")])
    [tent, lamp] = [view.ownership.queries_for(view.labels.column(one)) for one in ("tent", "lamp")]
    newest = ["query 3", *reversed(queries)][:NEWEST_QUERIES]
    assert (list(tent.newest), len(tent)) == (newest, len(queries))
    assert (list(lamp.newest), len(lamp)) == (["query 3"], 1)
