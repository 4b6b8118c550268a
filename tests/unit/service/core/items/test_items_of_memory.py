"""The items of the knowledge memory: replays, evidence, random histories, and indexes."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from service.bulk.answering import results
from service.bulk.query_file import FileQuery
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import DeleteItem, PutItem
from service.core.encoding.encoder import encode
from service.core.index.frozen_segment import FrozenSegment
from service.core.index.libraries import IndexParameters
from service.core.items.item_memory import ItemMemory
from service.core.label_filter import parse
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.answers import result_answer
from service.core.prediction.predictor import Predictor
from service.core.rules import Rule
from service.core.types import Floats, NewItem, PredictOptions, Role
from service.engine.loaded_bundle import LoadedBundle
from tests.support.changes import ENCODER, click, put_item, put_rule, seal_items
from tests.support.histories.items import ItemHistories
from tests.support.histories.memory import run_histories
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.encoder import DIMENSION
from tests.support.tiny.items import ITEMS
from tests.support.vectors import units

QUERY = "somewhere to sleep"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(
        make_bundle(
            tmp_path_factory.mktemp("items") / "bundle",
            encoder=ENCODER,
            items=ITEMS,
            index=IndexParameters(m=16, ef_construction=100, ef=64),
        )
    )


def vector(text: str, role: Role) -> Floats:
    return encode(ENCODER, [text], role=role)[0].astype(np.float16).astype(np.float32)


def test_a_replay_over_the_next_bundle_keeps_what_it_has_learned(bundle: Bundle) -> None:
    """The next bundle was trained on the output of `data log`: the posted items' newest texts."""
    assert bundle.items is not None
    trained = replace(bundle.items, projected=bundle.items.projected[::-1])
    memory = KnowledgeMemory(replace(bundle, items=trained))
    changes = [
        put_item(1, "camp", "a first text"),
        put_item(2, "camp", ITEMS["camp"]),
        DeleteItem(sequence=3, id="feet"),
        put_item(4, "feet", ITEMS["feet"]),
    ]
    for commit in (changes, *([change] for change in changes)):  # at once, then one by one
        view = memory.apply(commit)
    assert view.items is not None
    places = np.array([view.items.find(item_id) for item_id in ITEMS])
    assert np.array_equal(view.items.projected(places), trained.projected)


def test_items_count_for_the_memory_that_was_learned(bundle: Bundle) -> None:
    memory = KnowledgeMemory(bundle)
    assert memory.view.live_bytes == 0
    draft = memory.draft()
    draft.apply([put_item(1, "sleep", QUERY)])
    assert draft.live_bytes > 600
    assert memory.publish(draft).live_bytes == draft.live_bytes


def test_a_bundle_without_items_ignores_their_events(trigram_bundle: Bundle) -> None:
    changes = [click(1, QUERY, "tent"), put_item(2, "sleep", QUERY), DeleteItem(sequence=3, id="a")]
    view = KnowledgeMemory(trigram_bundle).apply(changes)
    assert view.items is None
    queries = vector(QUERY, Role.QUERY)[None]
    assert np.array_equal(view.vectors(np.array([view.base_rows])), queries)
    assert view.fused(queries).vectors is queries
    assert explained(view) is None


def explained(view: View, items: tuple[str, ...] | None = None) -> tuple:
    options = PredictOptions(explain=True, items=items)
    [prediction] = Predictor(ENCODER, tau=0.1).predict(view, [QUERY], options).predictions
    return prediction.items


def test_evidence_names_predicted_items_by_similarity_or_given_ones_in_their_order(
    bundle: Bundle,
) -> None:
    view = KnowledgeMemory(bundle).view
    query = vector(QUERY, Role.QUERY)
    similarities = {item: float(vector(text, Role.ITEM) @ query) for item, text in ITEMS.items()}
    nearest = sorted(similarities, key=lambda item_id: -similarities[item_id])[:2]
    found = explained(view)
    assert [(item.id, item.text, item.given) for item in found] == [
        (item_id, ITEMS[item_id], False) for item_id in nearest
    ]
    assert [item.similarity for item in found] == pytest.approx(
        [similarities[item_id] for item_id in nearest], abs=2e-3
    )
    given = explained(view, ("water", "FOOTWEAR", "water"))
    assert [(item.id, item.given) for item in given] == [("water", True), ("feet", True)]
    assert explained(view, ()) == ()


def test_a_row_of_a_file_attends_to_its_items_under_a_filter_of_a_rule(bundle: Bundle) -> None:
    memory = KnowledgeMemory(bundle)
    no_price = parse({"none": [{"field": "price", "exists": True}]}, at="filter", most=9)
    memory.apply([put_rule(1, Rule(id="r", filter=no_price))])
    predictor = Predictor(ENCODER, tau=0.1, only=memory.only)
    loaded = cast(LoadedBundle, SimpleNamespace(memory=memory, predictor=predictor))
    rows = [FileQuery(text=QUERY, items=items) for items in (None, ("water",), ("feet",))]
    found = results(loaded, rows, PredictOptions(explain=True), now=0)
    for row in rows:
        options = PredictOptions(explain=True, items=row.items)
        [prediction] = predictor.predict(memory.view, [QUERY], options).predictions
        assert found[row] == result_answer(prediction, explain=True)
    assert [one["id"] for one in found[rows[1]]["items"]] == ["water"]


def test_histories(bundle: Bundle) -> None:
    run_histories(bundle, examples=40, machine=ItemHistories)


# Posted items in indexes ------------------------------------------------------------------

BLOCK, POSTED = 500, 2_700  # five full blocks, four of them merged, and a rest


@cache
def vectors(seed: int) -> Floats:
    return units(POSTED, DIMENSION, seed=seed)


def put(sequence: int, number: int, *, seed: int = 1) -> PutItem:
    item = NewItem(id=f"new {number}", text=f"text {number} of {seed}")
    posted = vectors(seed)[number : number + 1].astype(np.float16)
    return PutItem(sequence=sequence, item=item, vectors=posted)


@pytest.fixture
def memory(bundle: Bundle) -> KnowledgeMemory:
    """A memory to which `POSTED` items were posted; no index is built yet."""
    memory = KnowledgeMemory(bundle, MemoryLimits(seal_items=BLOCK))
    memory.apply([put(number + 1, number) for number in range(POSTED)])
    return memory


def items_of(memory: KnowledgeMemory) -> ItemMemory:
    assert memory.view.items is not None
    return memory.view.items


def sealed_positions(memory: KnowledgeMemory) -> list[tuple[int, int]]:
    return [(part.first, part.stop) for part in items_of(memory).posted.sealed]


def assert_found_as_scanned(items: ItemMemory, *, recall: float = 0.98) -> None:
    """Check that nearly all nearest items are found, with a scan's similarities, and none dead."""
    shares = []
    for query in units(100, DIMENSION, seed=2):
        exact_similarities, exact = items.scanned().nearest(query[None], 3)
        similarities, places = items.nearest(query[None], 3)
        shares.append(len(np.intersect1d(exact, places)) / 3)
        if np.array_equal(exact, places):
            assert np.array_equal(similarities, exact_similarities)
        assert all(items.find(items.id_at(place)) == place for place in places.tolist())
    assert np.mean(shares) >= recall


def test_sealed_items_are_found_as_scanned_ones(memory: KnowledgeMemory, tmp_path: Path) -> None:
    before = memory.view
    *_, last = before.unsealed_item_plans()
    assert not memory.attach_items(last, None)  # it waits for those before it
    seal_items(memory, tmp_path)
    assert sealed_positions(memory) == [(0, 4 * BLOCK), (4 * BLOCK, 5 * BLOCK)]
    assert_found_as_scanned(items_of(memory))
    assert before.items is not None and not before.items.posted.sealed
    assert memory.view.version == before.version


def test_deleted_and_replaced_items_are_skipped_at_once(
    memory: KnowledgeMemory, tmp_path: Path
) -> None:
    seal_items(memory, tmp_path)
    full = memory.view
    version = memory.view.version
    gone, changed = range(0, 2_500, 5), range(1, 2_500, 5)
    changes = [
        *(DeleteItem(sequence=0, id=f"new {number}") for number in gone),
        *(put(0, number, seed=3) for number in changed),
    ]
    memory.apply([replace(change, sequence=version + 1 + n) for n, change in enumerate(changes)])
    items = items_of(memory)
    assert_found_as_scanned(items)
    for number in (0, 1):  # 0 was deleted, 1 has another vector now
        vector = vectors(1)[number : number + 1]
        _, places = items.nearest(vector, 3)
        ids = [items.id_at(place) for place in places.tolist()]
        assert f"new {number}" not in ids
        assert full.items is not None
        _, kept = full.items.nearest(vector, 1)
        assert full.items.id_at(int(kept[0])) == f"new {number}", "an old view never changes"
    assert len(items) == len(ITEMS) + POSTED - len(gone)


def test_what_died_while_an_index_was_built_is_not_found(
    memory: KnowledgeMemory, tmp_path: Path
) -> None:
    planned = list(memory.view.unsealed_item_plans())
    memory.apply([DeleteItem(sequence=POSTED + 1, id="new 7")])
    assert list(memory.view.items.plans) == planned
    seal_items(memory, tmp_path)
    _, places = items_of(memory).nearest(vectors(1)[7:8], 3)
    assert 7 + len(ITEMS) not in places.tolist()
    assert_found_as_scanned(items_of(memory))


def test_an_index_of_a_plan_that_was_replaced_is_not_taken(bundle: Bundle, tmp_path: Path) -> None:
    memory = KnowledgeMemory(bundle, MemoryLimits(seal_items=2, fan_out=2))
    memory.apply([put(1, 1), put(2, 2)])
    [old] = memory.view.unsealed_item_plans()
    memory.apply([put(3, 3), put(4, 4)])
    [merged] = memory.view.unsealed_item_plans()
    assert (merged.first, merged.stop) == (0, 4)
    assert not memory.attach_items(old, None)
    assert sealed_positions(memory) == []
    seal_items(memory, tmp_path)
    assert sealed_positions(memory) == [(0, 4)]


def test_posted_queries_get_the_same_keys_with_and_without_indexes(
    memory: KnowledgeMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is fused with the nearest items, and processes may have different indexes."""
    queries = ("tent", "light boots", "lamp")
    clicks = [click(POSTED + 1 + place, query, "tent") for place, query in enumerate(queries)]

    def keys() -> np.ndarray:
        draft = memory.draft()
        draft.apply(clicks)
        view = draft.view()
        return view.vectors(np.arange(view.base_rows, view.next_row))

    before = keys()
    seal_items(memory, tmp_path)
    monkeypatch.setattr(
        FrozenSegment, "search", lambda *_, **__: pytest.fail("an index was searched")
    )
    assert np.array_equal(keys(), before)
