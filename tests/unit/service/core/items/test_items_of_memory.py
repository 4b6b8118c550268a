"""The knowledge memory's item memory: writes, posted queries, replays and snapshots."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import Change, DeleteItem, PutInstance, PutItem, PutLabel
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.encoding.representer import Representer
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.replay import replayed
from service.core.types import (
    Event,
    Halves,
    NewInstance,
    NewItem,
    NewLabel,
    PredictOptions,
    Role,
)
from tests.support.histories.items import ItemHistories
from tests.support.histories.memory import run_histories
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.tiny.items import ITEMS

QUERY = "somewhere to sleep"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(make_bundle(tmp_path / "bundle", items=ITEMS))


def encoder_of(bundle: Bundle) -> OnnxEncoder:
    return OnnxEncoder(bundle.folder, bundle.manifest.encoder)


def vectors(bundle: Bundle, text: str, role: Role) -> Halves:
    return encode(encoder_of(bundle), [text], role=role).astype(np.float16)


def put_item(bundle: Bundle, sequence: int, item_id: str, text: str) -> PutItem:
    item = NewItem(id=item_id, text=text)
    return PutItem(sequence=sequence, item=item, vectors=vectors(bundle, text, Role.ITEM))


def click(bundle: Bundle, sequence: int) -> PutInstance:
    instance = NewInstance(query=QUERY, labels=("tent",))
    return PutInstance(
        sequence=sequence, instance=instance, vectors=vectors(bundle, QUERY, Role.QUERY)
    )


def history(bundle: Bundle) -> list[Change]:
    """Changes with two clicks; items change between the clicks and after them."""
    label = NewLabel(id="bag", text="sleeping bag", queries=("warm night",))
    texts = encode(encoder_of(bundle), [label.text, *label.queries], role=Role.LABEL)
    return [
        click(bundle, 1),
        put_item(bundle, 2, "sleep", "somewhere to sleep"),
        PutLabel(sequence=3, label=label, vectors=texts.astype(np.float16)),
        DeleteItem(sequence=4, id="feet"),
        put_item(bundle, 5, "camp", "camping at night"),
        DeleteItem(sequence=6, id="unknown"),
    ]


def live_keys(view: View) -> Halves:
    return view.vectors(np.arange(view.base_rows, view.next_row))


def test_a_posted_query_is_fused_with_the_items_of_its_time(bundle: Bundle) -> None:
    memory = KnowledgeMemory(bundle)
    before = memory.view
    key = live_keys(memory.apply([click(bundle, 1)]))[0]
    plain = vectors(bundle, QUERY, Role.QUERY)
    expected = before.fused(plain.astype(np.float32)).vectors[0].astype(np.float16)
    assert np.array_equal(key, expected)
    assert not np.array_equal(key, plain[0])
    memory.apply([put_item(bundle, 2, "sleep", QUERY)])
    assert np.array_equal(live_keys(memory.view)[0], key)


def test_a_labels_own_key_is_not_fused_and_its_queries_keys_are(bundle: Bundle) -> None:
    change = history(bundle)[2]
    view = KnowledgeMemory(bundle).apply([change])
    label_key, query_key = live_keys(view)
    assert np.array_equal(label_key, change.vectors[0])
    assert not np.array_equal(query_key, change.vectors[1])


def test_a_replay_of_the_log_gives_the_same_bits(bundle: Bundle) -> None:
    representer, changes = Representer(encoder_of(bundle)), history(bundle)
    events = [
        Event(
            sequence=change.sequence,
            kind=change.kind,
            body=change.body(),
            vectors=change.vectors.reshape(-1),
            encoder=representer.fingerprint,
        )
        for change in changes
    ]
    first, second = KnowledgeMemory(bundle), KnowledgeMemory(bundle)
    first.apply(changes)
    second.apply([replayed(event, representer) for event in events])
    assert np.array_equal(live_keys(first.view), live_keys(second.view))
    assert first.view.items is not None
    assert second.view.items is not None
    pages = [view.items.page(size=9) for view in (first.view, second.view) if view.items]
    assert pages[0] == pages[1]
    assert [item.id for item in pages[0]] == ["camp", "light", "sleep", "water"]


def test_a_replay_over_the_next_bundle_keeps_what_it_has_learned(bundle: Bundle) -> None:
    """The next bundle was trained on the output of `data log`: the posted items' newest texts."""
    assert bundle.items is not None
    trained = replace(bundle.items, projected=bundle.items.projected[::-1])
    memory = KnowledgeMemory(replace(bundle, items=trained))
    changes = [
        put_item(bundle, 1, "camp", "a first text"),
        put_item(bundle, 2, "camp", ITEMS["camp"]),
        DeleteItem(sequence=3, id="feet"),
        put_item(bundle, 4, "feet", ITEMS["feet"]),
    ]
    view = memory.apply(changes)
    assert view.items is not None
    places = np.array([view.items.find(item_id) for item_id in ITEMS])
    assert np.array_equal(view.items.projected(places), trained.projected)
    for change in changes:  # replay the same changes one by one
        view = memory.apply([change])
        assert view.items is not None
    assert np.array_equal(view.items.projected(places), trained.projected)


def test_items_count_for_the_memory_that_was_learned(bundle: Bundle) -> None:
    memory = KnowledgeMemory(bundle)
    assert memory.view.live_bytes == 0
    draft = memory.draft()
    draft.apply([put_item(bundle, 1, "sleep", QUERY)])
    assert draft.live_bytes > 600
    assert memory.publish(draft).live_bytes == draft.live_bytes


def test_a_bundle_without_items_ignores_their_events(bundle: Bundle, tmp_path: Path) -> None:
    plain = open_bundle(make_bundle(tmp_path / "plain"))
    view = KnowledgeMemory(plain).apply([*history(bundle)[:2], history(bundle)[3]])
    assert view.items is None
    assert np.array_equal(live_keys(view)[0], vectors(bundle, QUERY, Role.QUERY)[0])
    query = vectors(bundle, QUERY, Role.QUERY).astype(np.float32)
    assert view.fused(query).vectors is query


def explained(view: View, bundle: Bundle, items: tuple[str, ...] | None = None) -> tuple:
    options = PredictOptions(explain=True, items=items)
    [prediction] = (
        Predictor(encoder_of(bundle), tau=0.1).predict(view, [QUERY], options).predictions
    )
    return prediction.items


def test_evidence_names_the_predicted_items_by_similarity(bundle: Bundle) -> None:
    view = KnowledgeMemory(bundle).view
    found = explained(view, bundle)
    query = vectors(bundle, QUERY, Role.QUERY)[0].astype(np.float32)
    similarities = {
        item_id: float(vectors(bundle, text, Role.ITEM)[0].astype(np.float32) @ query)
        for item_id, text in ITEMS.items()
    }
    nearest = sorted(similarities, key=lambda item_id: -similarities[item_id])[:2]
    assert [(item.id, item.text, item.given) for item in found] == [
        (item_id, ITEMS[item_id], False) for item_id in nearest
    ]
    assert [item.similarity for item in found] == pytest.approx(
        [similarities[item_id] for item_id in nearest], abs=2e-3
    )


def test_evidence_names_given_items_in_the_order_of_the_request(bundle: Bundle) -> None:
    view = KnowledgeMemory(bundle).view
    found = explained(view, bundle, ("water", "FOOTWEAR", "water"))
    assert [(item.id, item.given) for item in found] == [("water", True), ("feet", True)]
    assert explained(view, bundle, ()) == ()


def test_a_view_names_the_items_of_its_own_version(bundle: Bundle) -> None:
    memory = KnowledgeMemory(bundle)
    before = memory.view
    expected = explained(before, bundle)
    after = memory.apply([put_item(bundle, 1, "sleep", QUERY)])
    assert explained(after, bundle)[0].id == "sleep"
    replaced = memory.apply([put_item(bundle, 2, "sleep", "something else")])
    removed = memory.apply([DeleteItem(sequence=3, id="sleep")])
    assert explained(before, bundle) == explained(removed, bundle) == expected
    assert explained(after, bundle)[0].text == QUERY
    assert QUERY not in {item.text for item in explained(replaced, bundle)}


def test_nothing_is_named_without_explain_or_without_an_item_memory(
    bundle: Bundle, tmp_path: Path
) -> None:
    predictor = Predictor(encoder_of(bundle), tau=0.1)
    view = KnowledgeMemory(bundle).view
    assert predictor.predict(view, [QUERY], PredictOptions()).predictions[0].items is None
    plain = KnowledgeMemory(open_bundle(make_bundle(tmp_path / "plain"))).view
    assert explained(plain, bundle) is None


def test_a_snapshot_holds_live_items_and_answers_alike(bundle: Bundle, tmp_path: Path) -> None:
    view = KnowledgeMemory(bundle).apply(history(bundle))
    write_snapshot(view, tmp_path / "snapshot", name="snapshot", log="")
    opened = open_bundle(tmp_path / "snapshot")
    assert opened.items is not None
    assert bundle.items is not None
    assert sorted(opened.items.ids) == ["camp", "light", "sleep", "water"]
    assert opened.items.facts.fingerprint == bundle.items.facts.fingerprint
    predictor = Predictor(encoder_of(bundle), tau=0.1)
    options = PredictOptions(exact=True, depth=50)
    answers = [
        predictor.predict(each, [QUERY, "warm boots"], options)
        for each in (view, KnowledgeMemory(opened, version=6).view)
    ]
    assert "fuse" in answers[0].seconds
    for mine, yours in zip(answers[0].predictions, answers[1].predictions, strict=True):
        assert [word.id for word in mine.keywords] == [word.id for word in yours.keywords]
        assert [word.score for word in mine.keywords] == pytest.approx(
            [word.score for word in yours.keywords], abs=1e-5
        )


def test_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # slow, and matters only in a crash
    bundle = open_bundle(make_bundle(tmp_path / "items", encoder=TrigramEncoder(), items=ITEMS))
    run_histories(bundle, examples=40, machine=ItemHistories)
