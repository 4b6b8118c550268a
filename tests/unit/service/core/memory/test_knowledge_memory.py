"""Random histories write, replace and delete labels and posted queries; edge cases are by hand.

A deleted label is gone with its rows and votes; posted again, it is a new label. A posted query has
one row, which votes for all labels ever clicked for it.
"""

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
from service.core.types import NewLabel, Role
from tests.support.changes import ENCODER, click, delete, put, seal
from tests.support.device.scan_device import HostScanDevice
from tests.support.histories.memory import run_histories
from tests.support.views import retrieved_texts, voting_texts

KAYAK = NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))
TENT = NewLabel(id="tent", text="dome tent", queries=("tent for winter",))


@pytest.fixture
def memory(trigram_bundle: Bundle) -> KnowledgeMemory:
    """A memory with blocks of three rows: a label with two queries fills one."""
    return KnowledgeMemory(trigram_bundle, MemoryLimits(live_rows=50, seal_rows=3))


def test_versions_go_on_from_the_bundles_even_if_nothing_changes(trigram_bundle: Bundle) -> None:
    memory = KnowledgeMemory(trigram_bundle, version=41)
    assert memory.view.version == 41
    view = memory.apply([put(42, KAYAK), UseBundle(sequence=43, bundle="next", configured="first")])
    assert (view.version, view.live_rows, view.labels.require("kayak").version) == (43, 3, 42)


def test_a_label_knows_the_newest_of_its_queries_and_their_number(memory: KnowledgeMemory) -> None:
    queries = [f"query {number}" for number in range(NEWEST_QUERIES + 5)]
    memory.apply([click(place, query, "tent") for place, query in enumerate(queries, start=1)])
    view = memory.apply([click(200, "query 3", "tent", "lamp"), click(201, "query 4", "tent")])
    [tent, lamp] = [view.ownership.queries_for(view.labels.column(one)) for one in ("tent", "lamp")]
    newest = ["query 3", *reversed(queries)][:NEWEST_QUERIES]
    assert (list(tent.newest), len(tent)) == (newest, len(queries))
    assert (list(lamp.newest), len(lamp)) == (["query 3"], 1)


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


# Random histories: every view answers like the dense oracle -------------------------------


def test_histories(trigram_bundle: Bundle) -> None:
    run_histories(trigram_bundle, examples=30)  # few: item histories test the same rules


def test_histories_on_a_device(trigram_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device returns few rows at a time, and its blocks hold only two live rows."""
    monkeypatch.setattr(device_segment, "BLOCK_ROWS", 2)
    device = HostScanDevice(largest_count=6, rounds=False)
    run_histories(open_bundle(trigram_bundle.folder, device=device), examples=25)
    assert len(device.fetched) > 100
