"""If many of the bundle's rows are dead, another graph is planned, which finds the alive ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import DeleteLabel
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.part import REGION_ROWS, BaseRows
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions, RowKind
from tests.support.changes import build, delete, seal
from tests.support.tiny.bundles import Catalogue, make_bundle
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.views import alive_rows

DELETED = ("shoes", "boots", "tent", "lamp", "stove", "bottle")  # after four, 9 of 14 rows are dead


def deletions(first: int, stop: int) -> list[DeleteLabel]:
    return [delete(place + 1, DELETED[place]) for place in range(first, stop)]


def test_a_graph_is_planned_when_too_many_rows_are_dead(trigram_bundle: Bundle) -> None:
    """The plan depends on the log alone, not on how changes are grouped into commits."""
    memory = KnowledgeMemory(trigram_bundle)
    memory.apply(deletions(0, 3))
    assert memory.view.base.dead_rows == 7  # half of all rows: not too many
    assert memory.view.unbuilt_base_plan() is None
    for cuts in ([5], [1, 5], [2, 4, 5], [1, 2, 3, 4, 5]):
        memory = KnowledgeMemory(trigram_bundle)
        for first, stop in zip([0, *cuts], cuts, strict=False):
            memory.apply(deletions(first, stop))
        plan = memory.view.unbuilt_base_plan()
        assert plan is not None
        assert plan.rows.tolist() == [4, 5, 6, 9, 12]


@pytest.mark.parametrize("kind", [None, *RowKind])
def test_another_graph_finds_what_an_exact_scan_finds(
    trigram_bundle: Bundle, tmp_path: Path, kind: RowKind | None
) -> None:
    memory = KnowledgeMemory(trigram_bundle)
    memory.apply(deletions(0, 4))
    assert memory.view.unbuilt_base_plan() is not None
    seal(memory, tmp_path)
    memory.apply(deletions(4, 5))
    view = memory.view
    queries = trigram_bundle.keys[:3].astype(np.float32)
    found, rows = view.retrieve(queries, depth=8, kind=kind)
    expected, exact_rows = view.retrieve(queries, depth=8, kind=kind, exact=True)
    assert rows.tolist() == exact_rows.tolist()
    assert found == pytest.approx(expected, abs=1e-5)
    assert set(rows.ravel().tolist()) <= {-1, *alive_rows(view).tolist()}


def test_an_older_graph_is_used_until_the_newest_is_built(
    trigram_bundle: Bundle, tmp_path: Path
) -> None:
    """Otherwise, if rows die quickly, each plan would be replaced before its graph is built."""
    memory = KnowledgeMemory(trigram_bundle)
    memory.apply(deletions(0, 4))
    older = memory.view.unbuilt_base_plan()
    assert older is not None
    segment = build(memory.view, older, tmp_path)
    memory.apply(deletions(4, 6))
    newer = memory.view.unbuilt_base_plan()
    assert newer is not None
    assert newer is not older
    memory.attach_base(older, segment)
    assert memory.view.unbuilt_base_plan() is newer
    memory.attach_base(newer, build(memory.view, newer, tmp_path))
    assert memory.view.unbuilt_base_plan() is None


def test_a_bundle_of_which_one_row_is_left_finds_that_row(
    trigram_bundle: Bundle, tmp_path: Path
) -> None:
    memory = KnowledgeMemory(trigram_bundle)
    memory.apply(deletions(0, 6))
    while memory.view.unbuilt_base_plan() is not None:
        seal(memory, tmp_path)
    [left] = alive_rows(memory.view).tolist()  # an instance that voted for no label
    _, rows = memory.view.retrieve(trigram_bundle.keys[:2].astype(np.float32), depth=5)
    assert rows.tolist() == [[left, *[-1] * 4]] * 2


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle with more rows than a search scans: 200 names of shoes and 2,000 of other goods."""
    drawn = np.random.default_rng(0)
    shoes = {f"shoe-{number:04}": f"red shoe {number:03}" for number in range(200)}
    words = ["".join(drawn.choice(list("abcdefghijklmnopqrstuvwxyz"), 9)) for _ in range(2_000)]
    goods = {f"good-{number:04}": word for number, word in enumerate(words)}
    folder = tmp_path_factory.mktemp("shop") / "shop"
    catalogue = Catalogue(labels=goods | shoes, instances={"red shoes": ("shoe-0199",)})
    return open_bundle(make_bundle(folder, catalogue, encoder=TrigramEncoder()))


def test_a_dead_region_gets_another_graph_long_before_a_tenth_is_dead(shop: Bundle) -> None:
    """This depends on where rows die, but not on how deletions are grouped into commits."""
    deletions = [delete(place + 1, f"shoe-{place:04}") for place in range(REGION_ROWS)]
    for size in (REGION_ROWS, 100, 1):
        memory = KnowledgeMemory(shop)
        for start in range(0, REGION_ROWS, size):
            assert memory.view.unbuilt_base_plan() is None
            memory.apply(deletions[start : start + size])
        plan = memory.view.unbuilt_base_plan()
        assert plan is not None
        assert len(plan.rows) == memory.view.base.count - REGION_ROWS
        memory.apply([delete(REGION_ROWS + 1, "good-0000")])
        assert memory.view.unbuilt_base_plan() is plan
    everywhere = KnowledgeMemory(shop)
    everywhere.apply([delete(place + 1, f"good-{8 * place:04}") for place in range(REGION_ROWS)])
    assert everywhere.view.base.dead_rows == REGION_ROWS
    assert everywhere.view.unbuilt_base_plan() is None


def test_a_plan_without_rows_finds_nothing(trigram_bundle: Bundle) -> None:
    base = BaseRows.of(trigram_bundle).with_tombstones(range(14)).planned()
    assert base.plan is not None
    base = base.with_segment(base.plan, None)
    queries = trigram_bundle.keys[:2].astype(np.float32)
    for ef in (8, None):
        _, rows = base.search(queries, count=3, ef=ef, kind=None, share=1)
        assert rows.tolist() == [[-1] * 3] * 2


def test_answers_read_keys_from_the_index_alone(trigram_bundle: Bundle) -> None:
    """Otherwise the pages of `keys` would be in memory as well."""

    class Unread:
        shape = trigram_bundle.keys.shape

        def __len__(self) -> int:
            return len(trigram_bundle.keys)

        def __getitem__(self, rows: object) -> np.ndarray:
            raise AssertionError("keys are read")

    memory = KnowledgeMemory(replace(trigram_bundle, keys=Unread()))
    predictor = Predictor(TrigramEncoder(), tau=0.1)
    options = PredictOptions(words=0.8, diversity=0.5, explain=True)
    found = predictor.predict(memory.view, ["boots", "winter tent"], options)
    assert any(one.keywords for one in found.predictions)
    rows = np.arange(len(trigram_bundle.keys))
    assert np.array_equal(memory.view.vectors(rows), trigram_bundle.keys[rows])
