"""Labels are created and replaced; failed changes and old views change nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import UseBundle
from service.core.encoding.encoder import encode
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.types import NewLabel, Role, RowKind
from tests.support.changes import ENCODER, click, delete, put, seal
from tests.support.oracle import Oracle
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue
from tests.support.views import alive_rows, retrieved_texts, voting_texts

BASE = len(INSTANCES) + len(LABELS)
KAYAK = NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))
TENT = NewLabel(id="tent", text="dome tent", queries=("tent for winter",))


@pytest.fixture
def memory(trigram_bundle: Bundle) -> KnowledgeMemory:
    """Blocks of three rows, so that a label with two queries fills one."""
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


def test_the_kinds_of_live_rows_are_kept_apart(memory: KnowledgeMemory) -> None:
    view = memory.apply([put(1, KAYAK)])
    instances = retrieved_texts(view, "kayak", kind=RowKind.INSTANCE)
    labels = retrieved_texts(view, "kayak", kind=RowKind.LABEL)
    assert sorted(instances) == sorted([*INSTANCES, "paddle", "boat for one"])
    assert sorted(labels) == sorted([*LABELS.values(), "sea kayak"])


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


def test_a_label_posted_twice_within_one_apply_keeps_only_its_last_rows(
    memory: KnowledgeMemory,
) -> None:
    last = replace(KAYAK, text="folding kayak", queries=())
    view = memory.apply([put(1, KAYAK), put(2, TENT), put(3, last)])
    assert view.version == 3
    assert voting_texts(view, "kayak") == ["folding kayak"]


def test_a_label_with_more_queries_than_a_block_spans_several(memory: KnowledgeMemory) -> None:
    queries = tuple(f"query number {number}" for number in range(7))
    view = memory.apply([put(1, NewLabel(id="x", text="many", queries=queries))])
    assert [part.stored_rows for part in view.parts] == [3, 3, 2]
    assert voting_texts(view, "x") == ["many", *queries]
    again = memory.apply([put(2, NewLabel(id="x", text="one"))])
    assert voting_texts(again, "x") == ["one"]
    assert [part.dead_rows for part in again.parts] == [3, 3, 2]


def test_two_labels_may_have_equal_texts(memory: KnowledgeMemory) -> None:
    twins = [put(n, NewLabel(id=f"twin-{n}", text="the same words")) for n in (1, 2)]
    view = memory.apply(twins)
    assert retrieved_texts(view, "the same words")[:2] == ["the same words"] * 2


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


def test_other_queries_with_the_same_text_replace_the_rows(memory: KnowledgeMemory) -> None:
    memory.apply([put(1, KAYAK)])
    view = memory.apply([put(2, replace(KAYAK, queries=("paddle",)))])
    assert voting_texts(view, "kayak") == ["sea kayak", "paddle"]
    assert (view.live_rows, view.dead_rows) == (5, 3)


def test_an_event_that_changes_nothing_moves_the_version_on(memory: KnowledgeMemory) -> None:
    view = memory.apply([put(1, KAYAK), UseBundle(sequence=2, bundle="next", configured="first")])
    assert (view.version, view.live_rows) == (2, 3)


def test_a_bundle_is_opened_at_the_version_that_it_holds(trigram_bundle: Bundle) -> None:
    memory = KnowledgeMemory(trigram_bundle, version=41)
    assert memory.view.version == 41
    assert memory.apply([put(42, KAYAK)]).labels.require("kayak").version == 42


# Failures, old views and searches -----------------------------------------------------------


def test_a_change_that_fails_leaves_the_memory_as_it_was(memory: KnowledgeMemory) -> None:
    """Also which rows belong to which label: the next changes must replace the right rows."""
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
    """Even after its rows were replaced, deleted and sealed."""
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


def test_exact_search_finds_what_the_graph_finds(memory: KnowledgeMemory) -> None:
    memory.apply([put(1, KAYAK), put(2, TENT)])
    vectors = encode(ENCODER, ["tent", "boots", "zzz"], role=Role.QUERY)
    for kind in (None, RowKind.INSTANCE, RowKind.LABEL):
        for depth in (1, 5, 40):
            graph = memory.view.retrieve(vectors, depth=depth, kind=kind)
            scan = memory.view.retrieve(vectors, depth=depth, kind=kind, exact=True)
            assert np.array_equal(graph[1], scan[1])
            assert graph[0] == pytest.approx(scan[0], abs=1e-5)


def test_a_retrieval_deeper_than_the_memory_is_filled_up(memory: KnowledgeMemory) -> None:
    memory.apply([put(1, KAYAK)])
    vectors = encode(ENCODER, ["tent", "boots"], role=Role.QUERY)
    similarities, rows = memory.view.retrieve(vectors, depth=BASE + 10)
    assert rows.shape == (2, BASE + 10)
    for line, scores in zip(rows, similarities, strict=True):
        assert sorted(line[: BASE + 3].tolist()) == list(range(BASE + 3))
        assert np.all(line[BASE + 3 :] == -1)
        assert np.all(scores[BASE + 3 :] == -np.inf)


def test_similarities_are_inner_products_with_the_stored_keys(memory: KnowledgeMemory) -> None:
    memory.apply([put(1, KAYAK), put(2, TENT)])
    oracle = Oracle.of(Catalogue(), ENCODER)
    for label in (KAYAK, TENT):
        oracle.put(label)
    vectors = encode(ENCODER, ["tent for one"], role=Role.QUERY)
    similarities = memory.view.retrieve(vectors, depth=len(oracle.rows()))[0][0]
    assert similarities == pytest.approx(oracle.similarities("tent for one"), abs=1e-5)
