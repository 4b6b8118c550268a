"""Unlearned pairs lose their votes wherever they are; other votes of the same query stay."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import Change
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import NewLabel, PredictOptions
from tests.support.changes import click, delete, put, seal, unlearn
from tests.support.tiny.bundles import LABELS, Catalogue, make_bundle
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.views import alive_rows, described_rows, labels_by_id, vote_weights, voting_texts

TWO = "trail footwear"  # a training query that votes for shoes and boots
KAYAK = NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))


@pytest.fixture
def memory(trigram_bundle: Bundle) -> KnowledgeMemory:
    return KnowledgeMemory(trigram_bundle, MemoryLimits(live_rows=50, seal_rows=3, fan_out=2))


def rows_with(view: View, text: str) -> list[int]:
    return [row for row in alive_rows(view).tolist() if view.text(row) == text]


def voted(view: View, text: str) -> list[tuple[str, ...]]:
    """Return the ids that each row with this text votes for."""
    return [of for _, row_text, of in described_rows(view) if row_text == text]


# Where a pair may be ------------------------------------------------------------------------


def test_a_click_is_unlearned(memory: KnowledgeMemory) -> None:
    memory.apply([click(1, "rowing", "tent", "lamp", weight=5.0)])
    view = memory.apply([unlearn(2, "rowing", "tent")])
    assert voted(view, "rowing") == [("lamp",)]
    assert vote_weights(view) == {("rowing", "lamp"): 5.0}
    tent, lamp = (view.labels.column(label_id) for label_id in ("tent", "lamp"))
    assert len(view.ownership.queries_for(tent)) == 0
    assert view.ownership.queries_for(lamp).newest == ("rowing",)
    again = memory.apply([click(3, "rowing", "boots")])
    assert voted(again, "rowing") == [("boots", "lamp")]


def test_a_query_without_votes_has_no_row(memory: KnowledgeMemory) -> None:
    memory.apply([click(1, "rowing", "tent"), click(2, "rowing", "lamp")])
    view = memory.apply([unlearn(3, "rowing", "lamp", "tent")])
    assert rows_with(view, "rowing") == []
    assert not len(view.ownership.clicks) and not len(view.ownership.queries_by_column)


def test_a_training_row_keeps_its_other_votes_and_its_key(memory: KnowledgeMemory) -> None:
    [before] = rows_with(memory.view, TWO)
    key = memory.view.vectors(np.array([before]))
    view = memory.apply([unlearn(1, TWO, "shoes")])
    [row] = rows_with(view, TWO)
    assert row >= view.base_rows
    assert voted(view, TWO) == [("boots",)]
    assert np.array_equal(view.vectors(np.array([row])), key)
    assert view.ownership.votes_of(TWO) == ()  # it is no click
    view = memory.apply([unlearn(2, TWO, "boots")])
    assert rows_with(view, TWO) == []
    assert voting_texts(view, "shoes") == ["shoes for running", "running shoes"]
    assert dict(view.ownership.lost_votes) == {
        view.labels.column(label_id): 1 for label_id in ("shoes", "boots")
    }


def test_a_query_that_a_label_lists_is_unlearned(memory: KnowledgeMemory) -> None:
    memory.apply([put(1, replace(KAYAK, metadata={"bid": "0.2"}))])
    view = memory.apply([unlearn(2, "paddle", "kayak")])
    label = view.labels.require("kayak")
    assert (label.queries, label.version, label.novel) == (("boat for one",), 2, True)
    assert label.metadata == {"bid": "0.2"}
    assert voting_texts(view, "kayak") == ["sea kayak", "boat for one"]
    view = memory.apply([put(3, KAYAK)])  # posting the label again teaches it again
    assert voting_texts(view, "kayak") == ["sea kayak", "paddle", "boat for one"]
    assert voting_texts(memory.apply([delete(4, "kayak")]), "kayak") == []


def test_a_pair_is_unlearned_everywhere_at_once(memory: KnowledgeMemory) -> None:
    listed = NewLabel(id="boots", text="hiking boots", queries=(TWO,))
    memory.apply([put(1, listed), click(2, TWO, "boots", "tent")])
    assert len(voted(memory.view, TWO)) == 3
    view = memory.apply([unlearn(3, TWO, "boots")])
    assert sorted(voted(view, TWO)) == [("shoes",), ("tent",)]


def test_all_rows_of_one_text_are_unlearned(tmp_path: Path) -> None:
    """Punctuation has no words, and rows with the same words may have other texts."""
    instances = {"?!": ("tent",), "!?": ("tent",), "tent, red": ("tent",), "red tent": ("tent",)}
    bundle = open_bundle(make_bundle(tmp_path / "b", Catalogue(labels=LABELS, instances=instances)))
    memory = KnowledgeMemory(bundle)
    view = memory.apply([unlearn(1, "?!", "tent"), unlearn(2, "red tent", "tent")])
    assert voting_texts(view, "tent") == ["!?", "tent, red", "camping tent"]


@pytest.mark.parametrize("query", [TWO.upper(), f"{TWO} ", "footwear trail", "unknown words", "?"])
def test_only_exactly_this_query_is_unlearned(memory: KnowledgeMemory, query: str) -> None:
    before = alive_rows(memory.view).tolist()
    assert memory.draft().learned(query, ["shoes"], trained=True) == ()
    view = memory.apply([unlearn(1, query, "shoes", "boots")])
    assert alive_rows(view).tolist() == before
    assert view.version == 1


def test_what_the_memory_has_learned_of_a_query(memory: KnowledgeMemory) -> None:
    draft = memory.draft()
    draft.apply([put(1, KAYAK), click(2, TWO, "lamp", weight=-1.0)])
    labels = ["tent", "shoes", "lamp", "no such"]
    assert draft.learned(TWO, labels, trained=True) == ("shoes", "lamp")
    assert draft.learned("paddle", ["kayak", "tent"], trained=True) == ("kayak",)
    draft.apply([unlearn(3, TWO, "shoes")])
    assert draft.learned(TWO, ["shoes", "boots"], trained=True) == ("boots",)
    draft.apply([delete(4, "boots")])
    assert draft.learned(TWO, ["boots"], trained=True) == ()


# A replaced training row stays one ------------------------------------------------------------


def test_a_replaced_row_stays_a_trained_one(trigram_bundle: Bundle, tmp_path: Path) -> None:
    """Words add more to posted rows, and hubs subtract nothing from them."""
    hubs = np.linspace(-0.5, 0.5, len(trigram_bundle.keys)).astype(np.float16)
    bundle = replace(trigram_bundle, hubs=hubs, has_hubs=True)
    memory = KnowledgeMemory(bundle, MemoryLimits(live_rows=50, seal_rows=3, fan_out=2))
    [trained] = rows_with(memory.view, TWO)
    before = memory.view.lexicon.matches(TWO, share=0.3).own.tolist()
    memory.apply([click(1, "rowing", "tent"), unlearn(2, TWO, "shoes")])
    for step in ("live", "sealed", "replaced again"):
        if step == "sealed":
            memory.apply([click(3, "sled", "tent")])
            seal(memory, tmp_path)
            assert memory.view.sealed_rows == 3
        if step == "replaced again":
            memory.apply([unlearn(4, TWO, "lamp")])
        view = memory.view
        rows = np.array([*rows_with(view, TWO), *rows_with(view, "rowing"), -1])
        assert view.posted(rows).tolist() == [False, True, True]
        assert view.penalties(rows).tolist() == [hubs[trained], 0.0, 0.0]
        assert view.penalties(rows[None]).shape == (1, 3)
        assert view.lexicon.matches(TWO, share=0.3).own.tolist() == before


def test_a_replaced_row_dies_with_its_last_label(memory: KnowledgeMemory, tmp_path: Path) -> None:
    memory.apply([unlearn(1, TWO, "shoes"), click(2, "a", "tent"), click(3, "b", "tent")])
    seal(memory, tmp_path)
    view = memory.apply([delete(4, "boots")])
    assert rows_with(view, TWO) == []
    # The row is no longer stored when the label that it lost goes as well.
    memory.apply([click(5, "c", "tent"), click(6, "d", "tent"), click(7, "e", "tent")])
    seal(memory, tmp_path)
    before = voting_texts(memory.view, "tent")
    assert voting_texts(memory.apply([delete(8, "shoes")]), "tent") == before


def test_votes_for_deleted_labels_do_not_keep_a_row(memory: KnowledgeMemory) -> None:
    view = memory.apply([delete(1, "boots"), unlearn(2, TWO, "shoes")])
    assert rows_with(view, TWO) == []


# Negative pairs -----------------------------------------------------------------------------


def scores(view: View, query: str, *, depth: int = 200) -> dict[str, float]:
    options = PredictOptions(top_k=50, memorization=0.5, depth=depth)
    [prediction] = Predictor(TrigramEncoder(), tau=0.1).predict(view, [query], options).predictions
    return {keyword.id: keyword.score for keyword in prediction.keywords}


def test_the_last_click_of_a_pair_decides_its_sign(memory: KnowledgeMemory) -> None:
    memory.apply([click(1, "rowing", "tent", "lamp"), click(2, "rowing", "tent", weight=-2.0)])
    assert vote_weights(memory.view) == {("rowing", "tent"): -2.0}
    assert voted(memory.view, "rowing") == [("lamp", "tent")]
    view = memory.apply([click(3, "rowing", "tent")])
    assert vote_weights(view) == {}
    memory.apply([click(4, "rowing", "tent", weight=-1.0)])
    view = memory.apply([unlearn(5, "rowing", "tent")])
    assert voted(view, "rowing") == [("lamp",)] and vote_weights(view) == {}


def test_a_negative_pair_takes_votes_from_its_label(memory: KnowledgeMemory) -> None:
    before = scores(memory.view, TWO)
    after = scores(memory.apply([click(1, TWO, "shoes", weight=-0.5)]), TWO)
    assert after["shoes"] < before["shoes"] / 2
    assert after["boots"] / after["shoes"] > before["boots"] / before["shoes"]


def test_a_negative_pair_changes_no_query_that_does_not_retrieve_it(
    memory: KnowledgeMemory,
) -> None:
    """Of such a query the answers are equal bit for bit."""
    query, depth = "gas stove", 3
    before = scores(memory.view, query, depth=depth)
    view = memory.apply([click(1, "trail boots", "stove", "boots", weight=-1000.0)])
    assert scores(view, query, depth=depth) == before


# Snapshots and replay -----------------------------------------------------------------------

CHANGES: list[Change] = [
    put(1, KAYAK),
    click(2, "rowing", "kayak", "tent", weight=3.0),
    click(3, TWO, "lamp", weight=-2.5),
    unlearn(4, TWO, "shoes"),
    unlearn(5, "paddle", "kayak"),
    unlearn(6, "rowing", "tent"),
    click(7, "light for a tent", "boots", weight=-1.0),
    unlearn(8, "light for a tent", "lamp"),
]


def held(view: View) -> list[object]:
    return [sorted(map(str, described_rows(view))), vote_weights(view), labels_by_id(view)]


@pytest.mark.parametrize("cut", range(len(CHANGES) + 1))
def test_a_snapshot_and_the_rest_of_the_log_hold_the_same(
    trigram_bundle: Bundle, tmp_path: Path, cut: int
) -> None:
    whole = KnowledgeMemory(trigram_bundle, MemoryLimits(seal_rows=3)).apply(CHANGES)
    memory = KnowledgeMemory(trigram_bundle)
    for change in CHANGES[:cut]:
        memory.apply([change])
    write_snapshot(memory.view, tmp_path / "snapshot", name="snapshot", log="log")
    reopened = open_bundle(tmp_path / "snapshot")  # it verifies the weights
    again = KnowledgeMemory(reopened, version=cut)
    view = again.apply(CHANGES[cut:]) if cut < len(CHANGES) else again.view

    def by_id(of: View) -> list[object]:
        rows, weights, labels = held(of)
        return [rows, weights, {one: replace(label, index=0) for one, label in labels.items()}]

    assert by_id(view) == by_id(whole)
    assert all(
        view.posted(np.array(rows_with(view, text))).tolist().count(False) == 1
        for text in (TWO, "light for a tent")
    )
