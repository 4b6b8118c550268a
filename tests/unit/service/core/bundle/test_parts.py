"""A bundle in parts: each is opened and verified alone, and all together are one memory."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.cli.check import check
from service.core.bundle import manifest
from service.core.bundle.bundle import Bundle, open_bundle, require_sound
from service.core.errors import BundleAltered, BundleMissing
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.prediction.predictor import Predictor
from service.core.types import NewLabel, PredictOptions
from tests.support.changes import ENCODER, put
from tests.support.tiny.bundles import make_bundle, sign_again
from tests.support.tiny.bundles import write_document as write_manifest

COUNT = 3
QUERIES = ["boots for winter", "light", "a tent to sleep in"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(make_bundle(tmp_path_factory.mktemp("whole") / "bundle"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("parts") / "bundle", parts=COUNT)


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy for a test to damage."""
    return Path(shutil.copytree(written, tmp_path / "bundle"))


def part(folder: Path, index: int) -> Path:
    return folder / f"parts/{index}-of-{COUNT}"


def largest(folder: Path) -> int:
    """The number of a part that has rows."""
    return max(range(COUNT), key=lambda index: len(np.load(part(folder, index) / "rows.npy")))


def answers(bundle: Bundle, *, exact: bool = True) -> object:
    predictor = Predictor(ENCODER, tau=0.1)
    options = PredictOptions(exact=exact, explain=True, depth=10)
    return predictor.predict(KnowledgeMemory(bundle).view, QUERIES, options).predictions


def test_all_parts_together_answer_as_one(whole: Bundle, written: Path) -> None:
    parted = open_bundle(written)
    require_sound(parted)
    assert answers(parted) == answers(whole)
    assert answers(parted, exact=False) == answers(whole, exact=False)
    assert np.array_equal(parted.keys[:], whole.keys)


def test_other_parts_are_neither_opened_nor_verified(whole: Bundle, folder: Path) -> None:
    index = largest(folder)
    for other in {*range(COUNT)} - {index}:
        shutil.rmtree(part(folder, other))
    own = open_bundle(folder, parts=[index])
    rows = own.parts[index].rows
    assert np.array_equal(own.keys[rows], whole.keys[rows])
    require_sound(own)
    shutil.rmtree(part(folder, index))
    assert open_bundle(folder, parts=()).parts == {}
    with pytest.raises(BundleMissing, match=rf"parts/{index}-of-{COUNT}/[\w.]+ is missing"):
        open_bundle(folder, parts=[index])
    with pytest.raises(BundleMissing, match="of-3/"):
        open_bundle(folder)


@pytest.mark.parametrize("name", ["rows.npy", "keys.npy", "base.index"])
def test_a_damaged_part_is_refused(folder: Path, name: str) -> None:
    index = largest(folder)
    path = part(folder, index) / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleAltered, match=name):
        open_bundle(folder)
    others = [other for other in range(COUNT) if other != index]
    open_bundle(folder, parts=others)


def _reversed(folder: Path) -> None:
    path = part(folder, largest(folder)) / "rows.npy"
    np.save(path, np.load(path)[::-1])


def _outside(folder: Path) -> None:
    path = part(folder, largest(folder)) / "rows.npy"
    np.save(path, np.load(path) + 1_000)


def _not_finite(folder: Path) -> None:
    path = part(folder, largest(folder)) / "keys.npy"
    keys = np.load(path)
    keys[0, 0] = np.inf
    np.save(path, keys)


@pytest.mark.parametrize(
    ("damage", "said"),
    [(_reversed, "rows.npy"), (_outside, "rows.npy"), (_not_finite, "keys.npy")],
)
def test_wrong_numbers_are_refused(folder: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(folder)
    sign_again(folder)
    with pytest.raises(BundleAltered, match=said):
        open_bundle(folder)


def test_a_key_in_a_wrong_part_is_found_by_check(folder: Path) -> None:
    """Two parts were exchanged: each file still has its checksum."""
    one, other = part(folder, 0), part(folder, 1)
    one.rename(folder / "kept")
    other.rename(one)
    (folder / "kept").rename(other)
    facts = manifest.as_document(manifest.read(folder))
    facts["parts"][:2] = facts["parts"][1::-1]
    write_manifest(folder, facts)
    sign_again(folder)
    open_bundle(folder)
    with pytest.raises(BundleAltered, match="holds keys of another part"):
        check(bundle=str(folder))


def test_parts_that_do_not_hold_all_rows_are_refused(folder: Path) -> None:
    facts = manifest.as_document(manifest.read(folder))
    facts["parts"] = facts["parts"][:2]
    write_manifest(folder, facts)
    with pytest.raises(BundleAltered, match="the parts of the keys do not hold"):
        open_bundle(folder)


def test_a_snapshot_is_in_as_many_parts(written: Path, tmp_path: Path) -> None:
    memory = KnowledgeMemory(open_bundle(written))
    view = memory.apply([put(1, NewLabel(id="kayak", text="sea kayak"))])
    write_snapshot(view, tmp_path / "next", name="next", log="")
    snapshot = open_bundle(tmp_path / "next")
    require_sound(snapshot)
    assert len(snapshot.parts) == COUNT
    [found] = KnowledgeMemory(snapshot).view.labels.texts_at(snapshot.labels - 1)[:1]
    assert found == "sea kayak"


def test_more_parts_than_keys(whole: Bundle, tmp_path: Path) -> None:
    """Some have no rows, and no graph."""
    many = open_bundle(make_bundle(tmp_path / "many", parts=40))
    require_sound(many)
    assert answers(many) == answers(whole)
    assert 0 in {len(held.rows) for held in many.parts.values()}
    answers(many, exact=False)
