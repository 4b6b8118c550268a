"""The knowledge memory's item memory: replays, evidence and random histories."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import DeleteItem
from service.core.encoding.encoder import encode
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import Floats, PredictOptions, Role
from tests.support.changes import ENCODER, click, put_item
from tests.support.histories.items import ItemHistories
from tests.support.histories.memory import run_histories
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS

QUERY = "somewhere to sleep"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(make_bundle(tmp_path / "bundle", encoder=ENCODER, items=ITEMS))


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


def test_histories(bundle: Bundle) -> None:
    run_histories(bundle, examples=40, machine=ItemHistories)
