"""Votes of the bundle's instances may have weights; all other votes weigh 1."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.errors import BundleAltered
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from tests.support.changes import ENCODER, click, delete, seal
from tests.support.tiny.bundles import Catalogue, sign_again

CATALOGUE = Catalogue(
    labels={"tent": "tent", "lamp": "light", "stove": "cooker"},
    instances={"camping": ("tent", "lamp", "stove"), "night": ("lamp",), "dinner": ("stove",)},
)
WEIGHTS = (0.5, 2.0, 0.5, 1.0, 1.0)


@pytest.fixture
def folder(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle(CATALOGUE, encoder=ENCODER, vote_weights=WEIGHTS)


@pytest.fixture
def memory(folder: Path, tmp_path: Path) -> KnowledgeMemory:
    """Clicks in a sealed and in a live part; one label is deleted."""
    memory = KnowledgeMemory(open_bundle(folder), MemoryLimits(seal_rows=1, fan_out=2))
    memory.apply([click(1, "darkness", "lamp")])
    seal(memory, tmp_path)
    memory.apply([click(2, "hike", "tent", "lamp"), delete(3, "stove")])
    return memory


def test_each_vote_has_the_weight_of_its_row(memory: KnowledgeMemory) -> None:
    rows = np.array([7, 0, 4, 6, 1])  # hike, camping, the label light, darkness, night
    columns, counts, weights = memory.view.weighted_votes(rows)
    assert columns.tolist() == [0, 1, 0, 1, 1, 1, 1]
    assert counts.tolist() == [2, 2, 1, 1, 1]
    assert weights is not None
    assert weights.tolist() == [1.0, 1.0, 0.5, 2.0, 1.0, 1.0, 1.0]


def test_a_snapshot_keeps_the_weights(memory: KnowledgeMemory, tmp_path: Path) -> None:
    write_snapshot(memory.view, tmp_path / "snapshot", name="snapshot", log="0f" * 16)
    written = open_bundle(tmp_path / "snapshot")
    texts = list(written.instance_texts)
    assert written.vote_weights is not None
    votes = np.split(written.vote_weights, written.indptr[1:-1])
    assert votes[texts.index("camping")].tolist() == [0.5, 2.0]
    assert votes[texts.index("hike")].tolist() == [1.0, 1.0]


def test_weights_must_be_as_many_as_votes(folder: Path) -> None:
    path = folder / "values/weights.npy"
    path.chmod(0o644)
    np.save(path, np.ones(2, np.float32))
    sign_again(folder)
    with pytest.raises(BundleAltered, match=r"weights\.npy has shape \(2,\), expected \(5,\)"):
        open_bundle(folder)
