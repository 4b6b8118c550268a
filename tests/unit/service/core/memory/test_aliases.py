"""Aliases are texts of their label: found, matched, spelled and deleted like the label's text."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.label_details import Details, dump
from service.core.changes import PutLabel, rows_of
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.replay import change_of, texts_of
from service.core.text_identity import distinct_aliases
from service.core.types import Event, Keyword, NewLabel, PredictOptions, Role
from tests.support.changes import ENCODER, click, delete, put, unlearn
from tests.support.histories.memory import Histories, run_histories
from tests.support.tiny.bundles import LABELS, Catalogue, make_bundle
from tests.support.views import described_rows, labels_by_id, row_counts

KAYAK = NewLabel(
    id="kayak", text="sea kayak", aliases=("AB-123-X", "canoe"), queries=("paddle", "canoe")
)


@pytest.fixture
def memory(trigram_bundle: Bundle) -> KnowledgeMemory:
    return KnowledgeMemory(trigram_bundle, MemoryLimits(live_rows=50, seal_rows=3, fan_out=2))


def with_aliases(folder: Path, *texts: str) -> KnowledgeMemory:
    """A bundle of a catalogue whose tent has two aliases, as trained rows."""
    count = len(Catalogue().instances)
    aliases = dict.fromkeys(texts or ("pyramid", "TX-77-Q"), ("tent",))
    details = Details(aliases=tuple(aliases), rows=(count, count + 1))
    made = make_bundle(
        folder,
        Catalogue(instances={**Catalogue().instances, **aliases}),
        encoder=ENCODER,
        aliases=details.rows,
        label_details=[dump(details) if label_id == "tent" else "" for label_id in LABELS],
    )
    return KnowledgeMemory(open_bundle(made), MemoryLimits(seal_rows=3, fan_out=2))


def reopened(view: View, folder: Path) -> KnowledgeMemory:
    write_snapshot(view, folder, name="snapshot", log="log")
    return KnowledgeMemory(open_bundle(folder), MemoryLimits(seal_rows=3), version=view.version)


def kinds(view: View, label_id: str) -> list[tuple[str, str]]:
    """Return kind and text of each row that votes for a label."""
    return [
        (str(getattr(kind, "value", kind)), text)
        for kind, text, voted in described_rows(view)
        if label_id in voted
    ]


def ask(view: View, query: str, **options: object) -> dict[str, Keyword]:
    chosen = PredictOptions(top_k=50, words=0.3, explain=True, **options)
    [answer] = Predictor(ENCODER, tau=0.1).predict(view, [query], chosen).predictions
    return {keyword.id: keyword for keyword in answer.keywords}


# Rows ------------------------------------------------------------------------------------------


def test_an_alias_is_a_row_of_its_label_before_and_after_a_snapshot(
    memory: KnowledgeMemory, tmp_path: Path
) -> None:
    view = memory.apply([put(1, KAYAK)])
    expected = [
        ("label", "sea kayak"),
        ("alias", "AB-123-X"),
        ("alias", "canoe"),
        ("instance", "paddle"),
        ("instance", "canoe"),
    ]
    assert kinds(view, "kayak") == expected
    again = reopened(view, tmp_path / "snapshot").view
    assert sorted(kinds(again, "kayak")) == sorted(expected)
    assert again.labels.as_posted("kayak") == KAYAK
    assert row_counts(again) == row_counts(view)
    details = again.bundle.label_details.at(again.labels.column("kayak"))
    rows = [again.text(row) for row in details.rows]
    assert rows == [*KAYAK.aliases, *KAYAK.queries]
    assert again.bundle.aliases.tolist() == list(details.rows[:2])


@pytest.mark.parametrize("posted_in_bundle", [False, True])
def test_a_label_posted_again_has_its_new_aliases_alone(
    memory: KnowledgeMemory, tmp_path: Path, posted_in_bundle: bool
) -> None:
    memory.apply([put(1, KAYAK)])
    if posted_in_bundle:
        memory = reopened(memory.view, tmp_path / "snapshot")
    same = memory.apply([put(2, replace(KAYAK, boost=2.0))])
    assert len(kinds(same, "kayak")) == 5
    view = memory.apply([put(3, replace(KAYAK, aliases=("raft",)))])
    assert [text for kind, text in kinds(view, "kayak") if kind == "alias"] == ["raft"]
    none = memory.apply([put(4, replace(KAYAK, aliases=()))])
    assert not [text for kind, text in kinds(none, "kayak") if kind == "alias"]
    assert not len(none.ownership.aliases)
    gone = memory.apply([put(5, KAYAK), delete(6, "kayak")])
    assert {"AB-123-X", "raft"}.isdisjoint(text for _, text, _ in described_rows(gone))
    assert not len(gone.ownership.aliases)


def test_unlearning_a_query_leaves_an_alias_with_its_text(
    memory: KnowledgeMemory, tmp_path: Path
) -> None:
    memory.apply([put(1, KAYAK), click(2, "canoe", "kayak", "tent")])
    view = memory.apply([unlearn(3, "canoe", "kayak")])
    assert ("alias", "canoe") in kinds(view, "kayak")
    assert ("instance", "canoe") not in kinds(view, "kayak")
    assert labels_by_id(view)["kayak"].aliases == KAYAK.aliases
    again = reopened(view, tmp_path / "snapshot")
    assert again.draft().learned("AB-123-X", ["kayak"], trained=True) == ()
    same = again.apply([unlearn(4, "canoe", "kayak"), unlearn(5, "AB-123-X", "kayak")])
    assert row_counts(same) == row_counts(view)


def test_unlearning_leaves_the_aliases_of_a_catalogue(tmp_path: Path) -> None:
    memory = with_aliases(tmp_path / "bundle")
    assert memory.draft().learned("pyramid", ["tent"], trained=True) == ()
    view = memory.apply([unlearn(1, "pyramid", "tent")])
    assert ("alias", "pyramid") in kinds(view, "tent")
    again = reopened(view, tmp_path / "snapshot").view
    assert row_counts(again) == row_counts(view)
    assert not again.posted(again.bundle.aliases).any()
    replaced = memory.apply([put(2, NewLabel(id="tent", text=LABELS["tent"], aliases=("yurt",)))])
    assert [text for kind, text in kinds(replaced, "tent") if kind == "alias"] == ["yurt"]
    assert memory.draft().learned("pyramid", ["tent"], trained=True) == ()
    assert ("alias", "pyramid") not in kinds(memory.apply([delete(3, "tent")]), "tent")


def test_the_room_for_a_label_counts_its_aliases(trigram_bundle: Bundle) -> None:
    assert rows_of(KAYAK) == 5
    memory = KnowledgeMemory(trigram_bundle, MemoryLimits(live_rows=5))
    memory.require_room(memory.draft(), [KAYAK])
    before = memory.view.live_bytes
    without = KnowledgeMemory(trigram_bundle).apply([put(1, replace(KAYAK, aliases=()))])
    assert memory.apply([put(1, KAYAK)]).live_bytes > without.live_bytes > before


# Questions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot", [False, True])
def test_an_alias_is_matched_explained_and_listed_like_a_text(
    memory: KnowledgeMemory, tmp_path: Path, snapshot: bool
) -> None:
    view = memory.apply([put(1, KAYAK)])
    if snapshot:
        view = reopened(view, tmp_path / "snapshot").view
    for spelling in ("AB-123-X", "ab123x", "ab 123 x", "AB.123.X"):
        found = ask(view, spelling)
        assert next(iter(found)) == "kayak"
        assert (found["kayak"].text, found["kayak"].match) == ("sea kayak", "exact")
        assert found["kayak"].evidence[0].kind == "alias"
        assert found["kayak"].evidence[0].text == "AB-123-X"
    assert ask(view, "cheap ab-123-x")["kayak"].match == "phrase"
    assert ask(view, "canoe tour", match=("phrase",)).keys() == {"kayak"}
    for memorization in (0.5, 1.0):
        exact = ask(view, "canoe", match=("exact",), memorization=memorization, depth=1)
        assert exact.keys() == {"kayak"}
    found = view.labels_with_words("x 123").page(size=9, every=True)
    assert [label.id for label in found] == ["kayak"]
    assert not len(view.labels_with_words("paddle"))  # a query is no text of the label


def test_an_alias_of_a_catalogue_is_found_in_any_spelling(tmp_path: Path) -> None:
    view = with_aliases(tmp_path / "bundle").view
    for spelling in ("TX-77-Q", "tx77q", "tx 77 q"):
        found = ask(view, spelling)
        assert next(iter(found)) == "tent"
        assert found["tent"].match == "exact"
        assert found["tent"].evidence[0].kind == "alias"
    [corrected] = (
        Predictor(ENCODER, tau=0.1)
        .predict(view, ["pyramd"], PredictOptions(spelling=True))
        .predictions
    )
    assert (corrected.reading.text, corrected.keywords[0].match) == ("pyramid", "exact")


class CatalogueHistories(Histories):
    """Random histories of a bundle with aliases, which other rows share their texts with."""

    aliases: ClassVar = {"tent": ("light tent", "red lamp XK-12")}


def test_histories(tmp_path: Path) -> None:
    bundle = with_aliases(tmp_path / "bundle", *CatalogueHistories.aliases["tent"]).view.bundle
    run_histories(bundle, examples=15, machine=CatalogueHistories)


# Stored ----------------------------------------------------------------------------------------


def test_events_without_aliases_are_those_of_before(memory: KnowledgeMemory) -> None:
    change = put(1, KAYAK)
    body = change.body()
    assert (tuple(body["aliases"]), change.vectors.shape[0]) == (KAYAK.aliases, 5)
    assert [role for role, _ in texts_of(KAYAK)] == [Role.LABEL] * 3 + [Role.QUERY] * 2
    for label in (KAYAK, replace(KAYAK, aliases=())):
        event = Event(sequence=1, kind=PutLabel.kind, body=put(1, label).body())
        assert ("aliases" in event.body) == bool(label.aliases)
        assert change_of(event, lambda posted: np.zeros((rows_of(posted), 2))).label == label
    assert "aliases" not in dump(Details(queries=("a",), rows=(1,)))


def test_aliases_are_distinct() -> None:
    given = ("Sea  KAYAK", "canoe", "Canoe ", "raft")
    assert distinct_aliases("sea kayak", given) == ("canoe", "raft")
