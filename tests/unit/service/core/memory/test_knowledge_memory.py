"""Labels and posted queries are written, replaced and deleted, also in random histories.

A deleted label is gone with its rows and votes; posted again, it is a new label. A posted query has
one row, which votes for all labels ever clicked for it.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import UseBundle
from service.core.encoding.encoder import encode
from service.core.index import device_segment
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.row_ownership import NEWEST_QUERIES
from service.core.types import NewLabel, Role, RowKind
from tests.support.changes import ENCODER, click, delete, put, seal
from tests.support.device.scan_device import HostScanDevice
from tests.support.histories.memory import run_histories
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue
from tests.support.views import alive_rows, described_rows, retrieved_texts, voting_texts

BASE = len(INSTANCES) + len(LABELS)
KAYAK = NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))
TENT = NewLabel(id="tent", text="dome tent", queries=("tent for winter",))


@pytest.fixture
def memory(trigram_bundle: Bundle) -> KnowledgeMemory:
    """A memory with blocks of three rows: a label with two queries fills one."""
    return KnowledgeMemory(trigram_bundle, MemoryLimits(live_rows=50, seal_rows=3))


# A memory without live rows ---------------------------------------------------------------


def test_a_fresh_memory_holds_the_bundle(memory: KnowledgeMemory) -> None:
    view = memory.view
    assert (view.version, view.base_rows, view.live_rows, view.dead_rows) == (0, BASE, 0, 0)
    rows = np.arange(BASE)
    assert [view.text(row) for row in rows.tolist()] == [*INSTANCES, *LABELS.values()]
    assert view.is_instance(rows).tolist() == [True] * len(INSTANCES) + [False] * len(LABELS)


def test_votes_of_every_row_by_hand(memory: KnowledgeMemory) -> None:
    """Columns: 0 boots, 1 bottle, 2 lamp, 3 shoes, 4 stove, 5 tent."""
    columns, counts = memory.view.votes(np.array([1, 4, 13, 3]))  # [trail, nothing, tent, light]
    assert counts.tolist() == [2, 0, 1, 2]
    assert columns.tolist() == [3, 0, 5, 2, 5]


def test_votes_of_no_rows_are_none(memory: KnowledgeMemory) -> None:
    for view in (memory.view, memory.apply([put(1, KAYAK)])):
        columns, counts = view.votes(np.zeros(0, np.int64))
        assert len(columns) == len(counts) == 0


def test_a_memory_of_labels_only_votes_by_its_identity_block(
    make_bundle: Callable[..., Path],
) -> None:
    bundle = open_bundle(make_bundle(Catalogue(instances={}), encoder=ENCODER))
    view = KnowledgeMemory(bundle).view
    columns, counts = view.votes(np.arange(len(LABELS)))
    assert columns.tolist() == list(range(len(LABELS)))
    assert counts.tolist() == [1] * len(LABELS)
    assert retrieved_texts(view, "tent", kind=RowKind.INSTANCE) == []
    assert len(retrieved_texts(view, "tent")) == len(LABELS)


# Creating and replacing -------------------------------------------------------------------


def test_a_new_label_is_found_by_its_text_and_by_its_queries(memory: KnowledgeMemory) -> None:
    view = memory.apply([put(7, KAYAK)])
    assert memory.view is view
    assert (view.version, view.live_rows, view.dead_rows) == (7, 3, 0)
    for text in ("sea kayak", "paddle", "boat for one"):
        assert retrieved_texts(view, text)[0] == text
    assert voting_texts(view, "kayak") == ["sea kayak", "paddle", "boat for one"]
    kayak = view.labels.require("kayak")
    assert (kayak.index, kayak.novel, kayak.version) == (len(LABELS), True, 7)
    assert view.is_instance(np.arange(BASE, BASE + 3)).tolist() == [False, True, True]


def test_replacing_a_label_replaces_its_text_and_its_queries(memory: KnowledgeMemory) -> None:
    memory.apply([put(1, KAYAK)])
    view = memory.apply([put(2, replace(KAYAK, text="river kayak", queries=("white water",)))])
    assert (view.live_rows, view.dead_rows) == (5, 3)
    assert voting_texts(view, "kayak") == ["river kayak", "white water"]
    assert not {"sea kayak", "paddle", "boat for one"} & set(retrieved_texts(view, "sea kayak"))
    assert view.labels.columns == len(LABELS) + 1


def test_replacing_a_label_of_the_bundle_keeps_the_votes_of_the_bundles_instances(
    memory: KnowledgeMemory,
) -> None:
    view = memory.apply([put(1, TENT)])
    assert view.dead_rows == 1
    assert "camping tent" not in retrieved_texts(view, "camping tent")
    assert voting_texts(view, "tent") == [
        "shelter for two",
        "light for a tent",
        "dome tent",
        "tent for winter",
    ]
    tent = view.labels.require("tent")
    assert (tent.index, tent.novel, tent.version) == (5, False, 1)


def test_new_metadata_alone_keep_the_rows(memory: KnowledgeMemory) -> None:
    before = memory.apply([put(1, KAYAK)])
    view = memory.apply(
        [
            put(2, replace(KAYAK, metadata={"bid": "0.30"})),
            put(3, NewLabel(id="tent", text=LABELS["tent"], metadata={"bid": "0.10"})),
        ]
    )
    assert alive_rows(view).tolist() == alive_rows(before).tolist()
    assert (view.live_rows, view.dead_rows) == (3, 0)
    kayak, tent = view.labels.require("kayak"), view.labels.require("tent")
    assert (kayak.metadata, kayak.version, kayak.novel) == ({"bid": "0.30"}, 2, True)
    assert (tent.metadata, tent.version, tent.novel) == ({"bid": "0.10"}, 3, False)
    assert before.labels.require("kayak").metadata == {}
    later = memory.apply([put(4, NewLabel(id="tent", text="dome tent"))])
    assert "camping tent" not in voting_texts(later, "tent")


def test_an_event_that_changes_nothing_moves_the_version_on(memory: KnowledgeMemory) -> None:
    view = memory.apply([put(1, KAYAK), UseBundle(sequence=2, bundle="next", configured="first")])
    assert (view.version, view.live_rows) == (2, 3)


def test_a_bundle_is_opened_at_the_version_that_it_holds(trigram_bundle: Bundle) -> None:
    memory = KnowledgeMemory(trigram_bundle, version=41)
    assert memory.view.version == 41
    assert memory.apply([put(42, KAYAK)]).labels.require("kayak").version == 42


# Deleted labels -----------------------------------------------------------------------------


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


# Posted queries: each has one row ------------------------------------------------------


def test_a_posted_query_votes_for_all_its_labels_with_one_row(memory: KnowledgeMemory) -> None:
    view = memory.apply([click(1, "igloo", "tent", "lamp")])
    assert described_rows(view)[-1] == (RowKind.INSTANCE, "igloo", ("lamp", "tent"))
    assert view.live_rows == 1
    assert retrieved_texts(view, "igloo")[0] == "igloo"
    assert "igloo" not in retrieved_texts(view, "igloo", kind=RowKind.LABEL)


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


def test_a_label_knows_the_newest_of_its_queries_and_their_number(memory: KnowledgeMemory) -> None:
    queries = [f"query {number}" for number in range(NEWEST_QUERIES + 5)]
    memory.apply([click(place, query, "tent") for place, query in enumerate(queries, start=1)])
    view = memory.apply([click(200, "query 3", "tent", "lamp"), click(201, "query 4", "tent")])
    [tent, lamp] = [view.ownership.queries_for(view.labels.column(one)) for one in ("tent", "lamp")]
    newest = ["query 3", *reversed(queries)][:NEWEST_QUERIES]
    assert (list(tent.newest), len(tent)) == (newest, len(queries))
    assert (list(lamp.newest), len(lamp)) == (["query 3"], 1)


# Failures, old views and searches -----------------------------------------------------------


def test_a_change_that_fails_leaves_the_memory_as_it_was(memory: KnowledgeMemory) -> None:
    """It still knows the rows of each label, so the next changes replace the right rows."""
    before = memory.apply([put(1, KAYAK)])
    broken = replace(put(3, TENT), vectors=np.zeros((2, 3), np.float16))
    fewer = replace(KAYAK, text="lost kayak", queries=())
    with pytest.raises(ValueError, match="shape"):
        memory.apply([put(2, fewer), broken])
    assert memory.view is before
    memory.apply([put(2, NewLabel(id="axe", text="hand axe")), put(3, TENT)])
    view = memory.apply([put(4, replace(KAYAK, queries=("rowing",)))])
    assert voting_texts(view, "axe") == ["hand axe"]
    assert voting_texts(view, "kayak") == ["sea kayak", "rowing"]
    assert "camping tent" not in retrieved_texts(view, "tent")
    assert view.dead_rows == 1 + 3


def test_an_old_view_never_changes_its_answers(memory: KnowledgeMemory, tmp_path: Path) -> None:
    """The view's rows are replaced, deleted and sealed meanwhile."""
    vectors = encode(ENCODER, ["kayak tent", "boat"], role=Role.QUERY)
    answers = []
    changes = [
        put(1, KAYAK),
        put(2, TENT),
        click(3, "boat", "kayak"),
        put(4, replace(KAYAK, text="river kayak")),
        delete(5, "kayak"),
        put(6, replace(TENT, queries=())),
    ]
    for change in changes:
        view = memory.apply([change])
        seal(memory, tmp_path)
        answers.append((view, *view.retrieve(vectors, depth=30), voting_texts(view, "kayak")))
    for view, similarities, rows, kayak in answers:
        again = view.retrieve(vectors, depth=30)
        assert np.array_equal(again[0], similarities)
        assert np.array_equal(again[1], rows)
        assert voting_texts(view, "kayak") == kayak


def test_a_retrieval_deeper_than_the_memory_is_filled_up(memory: KnowledgeMemory) -> None:
    memory.apply([put(1, KAYAK)])
    vectors = encode(ENCODER, ["tent", "boots"], role=Role.QUERY)
    similarities, rows = memory.view.retrieve(vectors, depth=BASE + 10)
    assert rows.shape == (2, BASE + 10)
    for line, scores in zip(rows, similarities, strict=True):
        assert sorted(line[: BASE + 3].tolist()) == list(range(BASE + 3))
        assert np.all(line[BASE + 3 :] == -1)
        assert np.all(scores[BASE + 3 :] == -np.inf)


# Random histories: every view answers like the dense oracle -------------------------------


def test_histories(trigram_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # slow, and matters only in a crash
    run_histories(trigram_bundle, examples=30)  # few: item histories test the same rules


def test_histories_on_a_device(trigram_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device returns few rows at a time, and its blocks hold only two live rows."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    monkeypatch.setattr(device_segment, "BLOCK_ROWS", 2)
    device = HostScanDevice(largest_count=6, rounds=False)
    run_histories(open_bundle(trigram_bundle.folder, device=device), examples=25)
    assert len(device.fetched) > 100
