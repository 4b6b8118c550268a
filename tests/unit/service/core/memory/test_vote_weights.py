"""Votes of the bundle's instances and of clicks may have weights; all other votes weigh 1."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.changes import Change
from service.core.errors import BundleAltered
from service.core.files.arrays import is_constant
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.row_ownership import ALL_PLAIN
from service.core.memory.snapshot import write_snapshot
from tests.support.changes import ENCODER, click, delete, seal
from tests.support.histories.memory import answers
from tests.support.tiny.bundles import Catalogue, sign_again
from tests.support.views import vote_weights

CATALOGUE = Catalogue(
    labels={"tent": "tent", "lamp": "light", "stove": "cooker"},
    instances={"camping": ("tent", "lamp", "stove"), "night": ("lamp",), "dinner": ("stove",)},
)
WEIGHTS = (0.5, 2.0, 0.5, 1.0, 1.0)


@pytest.fixture
def folder(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle(CATALOGUE, encoder=ENCODER, vote_weights=WEIGHTS)


def test_weights_must_be_as_many_as_votes(folder: Path) -> None:
    path = folder / "values/weights.npy"
    path.chmod(0o644)
    np.save(path, np.ones(2, np.float32))
    sign_again(folder)
    with pytest.raises(BundleAltered, match=r"weights\.npy holds float32 \[2\]"):
        open_bundle(folder)


# Clicks -----------------------------------------------------------------------------------


@pytest.fixture
def plain(make_bundle: Callable[..., Path]) -> KnowledgeMemory:
    """A memory whose bundle has no weights."""
    return KnowledgeMemory(open_bundle(make_bundle(CATALOGUE, encoder=ENCODER)))


def test_a_click_with_the_weight_that_it_has_changes_nothing(plain: KnowledgeMemory) -> None:
    plain.apply([click(1, "hike", "tent", "lamp", weight=0.1)])  # not exactly a float32
    plain.apply([click(2, "hike", "lamp", weight=0.1)])
    assert (plain.view.live_rows, plain.view.dead_rows) == (1, 0)


def test_nothing_is_kept_of_weights_while_every_click_weighs_one(
    plain: KnowledgeMemory, tmp_path: Path
) -> None:
    view = plain.apply([click(1, "hike", "tent", "lamp")])
    plain_bytes = view.live_bytes
    assert view.ownership.special_votes_of("hike") is ALL_PLAIN
    write_snapshot(view, tmp_path / "plain", name="s", log="0f" * 16)
    assert is_constant(open_bundle(tmp_path / "plain").vote_weights)
    assert plain.apply([click(2, "dusk", "lamp", weight=2.0)]).live_bytes > 2 * plain_bytes
    plain.apply([click(3, "dusk", "lamp")])
    write_snapshot(plain.view, tmp_path / "again", name="s", log="0f" * 16)
    assert is_constant(open_bundle(tmp_path / "again").vote_weights)


def test_live_sealed_replayed_and_reopened_rows_answer_alike(folder: Path, tmp_path: Path) -> None:
    changes: list[Change] = [
        click(1, "hike", "tent", weight=0.3),
        click(2, "hiking", "lamp", "tent", weight=3.0),
        click(3, "hike", "stove", weight=7.0),
        click(4, "hill", "tent"),
        delete(5, "lamp"),
    ]
    memory = KnowledgeMemory(open_bundle(folder), MemoryLimits(seal_rows=4, fan_out=2))
    for change in changes:
        memory.apply([change])
    live, weights = answers(memory.view), vote_weights(memory.view)
    assert (weights["hike", "stove"], weights["camping", "stove"]) == (7.0, 0.5)
    seal(memory, tmp_path)
    assert memory.view.sealed_rows == 3
    replayed = KnowledgeMemory(open_bundle(folder))
    replayed.apply(changes)
    write_snapshot(memory.view, tmp_path / "s", name="s", log="0f" * 16)
    reopened = KnowledgeMemory(open_bundle(tmp_path / "s"), version=5)
    for other in (memory, replayed, reopened):
        assert vote_weights(other.view) == weights
        assert answers(other.view) == live
    of_hike = [other.view.ownership.special_votes_of("hike") for other in (replayed, reopened)]
    assert [*of_hike[0].values()] == [*of_hike[1].values()]  # the columns have new numbers
    for other in (replayed, reopened):
        other.apply([click(6, "hike", "tent", "stove")])
        assert ("hike", "tent") not in vote_weights(other.view)


def test_rows_weigh_as_often_as_they_were_clicked(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    """The words of queries that were clicked often correct others, see `spelling`."""
    bundle = open_bundle(make_bundle(CATALOGUE, encoder=ENCODER, vote_clicks=[10.0, 2.0, 0.5]))
    memory = KnowledgeMemory(bundle)
    memory.apply([click(1, "hike", "tent", weight=4.0)])

    def masses(of: KnowledgeMemory) -> dict[str, float]:
        rows = of.view.alive_rows()
        found = zip(rows.tolist(), of.view.masses(rows).tolist(), strict=True)
        return {of.view.text(row): mass for row, mass in found}

    expected = {"camping": 30.0, "night": 2.0, "dinner": 0.5, "hike": 4.0}
    expected |= dict.fromkeys(CATALOGUE.labels.values(), 1.0)
    assert masses(memory) == expected
    rows = len(expected)
    assert memory.view.lexicon.share("camping") == pytest.approx(30.0 / rows)
    assert memory.view.lexicon.share("hike") == pytest.approx(4.0 / rows)
    write_snapshot(memory.view, tmp_path / "next", name="s", log="0f" * 16)
    assert masses(KnowledgeMemory(open_bundle(tmp_path / "next"))) == expected
    memory.apply([delete(2, "tent")])
    assert memory.view.lexicon.share("hike") == 0.0
