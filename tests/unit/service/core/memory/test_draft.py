"""Drafts are invisible until published, plan segments of full blocks, and keep the limits."""

from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle
from service.core.errors import MemoryFull
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.types import NewInstance, NewLabel, RowKind
from tests.support.changes import build, click, delete, put, seal
from tests.support.views import alive_rows, described_rows, labels_by_id, plan_values, voting_texts

KAYAK = NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))
TENT = NewLabel(id="tent", text="dome tent")


@pytest.fixture
def memory(trigram_bundle: Bundle) -> KnowledgeMemory:
    """A memory that merges every two blocks of three rows; the bundle has 14 rows."""
    return KnowledgeMemory(trigram_bundle, MemoryLimits(live_rows=50, seal_rows=3, fan_out=2))


def one_row(sequence: int, label_id: str = "", text: str = "") -> object:
    """A label without queries: the smallest change that adds a row."""
    return put(sequence, NewLabel(id=label_id or f"l{sequence}", text=text or f"text {sequence}"))


def clicks(number: int) -> list[NewInstance]:
    """Clicks of `number` queries, each of which adds a row."""
    return [NewInstance(query=f"query {place}", labels=("tent",)) for place in range(number)]


# Dropped and published ------------------------------------------------------------------------


def test_a_draft_knows_what_it_will_publish(memory: KnowledgeMemory) -> None:
    draft = memory.draft()
    draft.apply([put(1, KAYAK), click(2, "rowing", "kayak", "tent"), delete(3, "tent")])
    assert (draft.version, draft.live_rows) == (3, 4)
    assert draft.ownership.votes_of("rowing") == (6,)
    assert draft.ownership.votes_of("unheard of") == ()
    assert draft.labels.as_posted("kayak") == KAYAK
    assert draft.labels.as_posted("tent") is None
    view = memory.publish(draft)
    assert memory.view is view
    assert (view.version, view.live_rows) == (3, 4)


def test_a_dropped_draft_changes_nothing(memory: KnowledgeMemory) -> None:
    """This draft has written rows, new blocks, tombstones and plans."""

    def held(view: View) -> tuple:
        rows = alive_rows(view).tolist()
        return described_rows(view), labels_by_id(view), plan_values(view), rows

    before = memory.apply([put(1, KAYAK), one_row(2)])
    contents = held(before)
    dropped = memory.draft()
    dropped.apply([delete(3, "kayak"), put(4, TENT), click(5, "rowing", "lamp"), one_row(6)])
    dropped.view()
    assert memory.view is before
    assert held(before) == contents
    view = memory.apply([one_row(3, "axe", "hand axe"), click(4, "sled", "tent")])
    assert described_rows(view)[-1] == (RowKind.INSTANCE, "sled", ("tent",))
    assert voting_texts(view, "axe") == ["hand axe"]
    assert voting_texts(view, "kayak") == ["sea kayak", "paddle", "boat for one"]
    assert view.ownership.votes_of("rowing") == ()


# Limits ------------------------------------------------------------------------------------


def test_a_full_memory_is_an_error_before_anything_is_applied(trigram_bundle: Bundle) -> None:
    memory = KnowledgeMemory(trigram_bundle, MemoryLimits(live_rows=4, seal_rows=3))
    draft = memory.draft()
    memory.require_room(draft, clicks(4))
    with pytest.raises(MemoryFull, match=r"holds 0 live rows and takes at most 4 \(live_rows\)"):
        memory.require_room(draft, clicks(5))
    draft.apply([put(1, KAYAK)])
    memory.require_room(draft, clicks(1))
    with pytest.raises(MemoryFull, match="holds 3 live rows"):
        memory.require_room(draft, clicks(2))


def test_a_memory_that_is_full_by_its_bytes_is_an_error(trigram_bundle: Bundle) -> None:
    large = NewLabel(id="large", text="large", metadata={"note": "x" * 100_000})
    memory = KnowledgeMemory(trigram_bundle, MemoryLimits(live_bytes=150_000))
    draft = memory.draft()
    memory.require_room(draft, [large])
    draft.apply([put(1, large)])
    with pytest.raises(MemoryFull, match=r"takes 10\d{4} bytes .* at most 150000 \(live_bytes\)"):
        memory.require_room(draft, [large])
    memory.publish(draft)
    memory.apply([delete(2, "large")])
    memory.require_room(memory.draft(), [large])


def test_dead_rows_take_up_room_until_they_are_sealed_away(
    trigram_bundle: Bundle, tmp_path: Path
) -> None:
    memory = KnowledgeMemory(trigram_bundle, MemoryLimits(live_rows=6, seal_rows=3))
    memory.apply([one_row(n, "axe", f"axe {n}") for n in (1, 2, 3)])
    with pytest.raises(MemoryFull):
        memory.require_room(memory.draft(), clicks(4))
    before = memory.view.live_bytes
    seal(memory, tmp_path)
    assert (memory.view.live_rows, memory.view.dead_rows) == (1, 0)
    assert memory.view.live_bytes < before
    memory.require_room(memory.draft(), clicks(5))


# Blocks and plans ---------------------------------------------------------------------------


def test_a_block_is_planned_as_soon_as_it_is_full(memory: KnowledgeMemory) -> None:
    assert plan_values(memory.apply([one_row(1), one_row(2)])) == []
    assert plan_values(memory.apply([one_row(3)])) == [(14, 17, [14, 15, 16])]
    assert plan_values(memory.apply([one_row(4), one_row(5)])) == [(14, 17, [14, 15, 16])]
    assert plan_values(memory.apply([one_row(6)])) == [(14, 20, list(range(14, 20)))]
    queries = tuple(f"query {number}" for number in range(9))  # one change fills several blocks
    view = memory.apply([put(7, NewLabel(id="x", text="many", queries=queries))])
    assert plan_values(view) == [(14, 26, list(range(14, 26))), (26, 29, [26, 27, 28])]
    assert [part.sealed for part in view.parts] == [False] * 6


def test_a_segment_that_is_no_longer_planned_is_not_attached(
    memory: KnowledgeMemory, tmp_path: Path
) -> None:
    """Two blocks were merged into one plan while the first one's segment was being built."""
    view = memory.apply([one_row(n) for n in (1, 2, 3)])
    (plan,) = view.unsealed_plans()
    segment = build(view, plan, tmp_path)
    later = memory.apply([one_row(n) for n in (4, 5, 6)])
    assert not memory.attach(memory.seal(plan, segment))
    assert memory.view is later
    (wider,) = later.unsealed_plans()
    assert memory.attach(memory.seal(wider, build(later, wider, tmp_path)))
    assert described_rows(memory.view) == described_rows(later)


def test_rows_deleted_while_a_segment_is_built_stay_dead(
    memory: KnowledgeMemory, tmp_path: Path
) -> None:
    view = memory.apply([one_row(n) for n in (1, 2, 3)])
    (plan,) = view.unsealed_plans()
    segment = build(view, plan, tmp_path)
    memory.apply([delete(4, "l2")])  # after the build got its vectors
    sealed = memory.seal(plan, segment)
    later = memory.apply([delete(5, "l3")])  # after the part got its rows
    assert memory.attach(sealed)
    assert (memory.view.version, memory.view.dead_rows) == (5, 2)
    assert described_rows(memory.view) == described_rows(later)
    assert np.array_equal(alive_rows(memory.view), alive_rows(later))
