"""A reranker's folder is read as it was written; mismatches and damage are named."""

from pathlib import Path

import pytest

from service.core.bundle import reranker_files
from service.core.bundle.manifest import PredictorFacts
from service.core.errors import BundleAltered, BundleMissing, BundleUnsupported, InvalidInput
from tests.support.tiny.reranker import tiny_reranker
from training.checkpoints import reranker_folder
from training.checkpoints.reranker_folder import FILE

PREDICTOR = PredictorFacts(tau=0.1, depth=50, memorization=0.4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = tiny_reranker(tmp_path, ["red tent", "lamp"], PREDICTOR, candidates=7)
    target = tmp_path / "second"
    target.mkdir()
    reranker_files.write(files, target)
    reranker_folder.write(files, target, weights="those of rae")
    return target


def test_what_is_written_is_read_and_copied(folder: Path, tmp_path: Path) -> None:
    files = reranker_folder.read(folder)
    assert (files.facts.candidates, files.facts.predictor) == (7, PREDICTOR)
    (tmp_path / "other").mkdir()
    reranker_folder.copy(folder, tmp_path / "other")
    assert reranker_folder.read(tmp_path / "other").facts == files.facts
    reranker_folder.copy(tmp_path, tmp_path / "other")  # nothing to copy


def test_another_checkpoint_is_refused(folder: Path) -> None:
    assert reranker_folder.read(folder, weights="those of rae").facts.candidates == 7
    with pytest.raises(InvalidInput, match=r"second was learned from .* another checkpoint"):
        reranker_folder.read(folder, weights="those of unidec")


def test_a_folder_without_one(tmp_path: Path) -> None:
    assert not reranker_folder.is_reranker(tmp_path)
    with pytest.raises(BundleMissing, match="no reranker was written there"):
        reranker_folder.read(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('"version": 1', '"version": 9', BundleUnsupported, "version"),
        ('"candidates": 7', '"candidates": 8', BundleAltered, r"are not those of reranker\.json"),
        ('"candidates": 7', '"candidates": 0', BundleAltered, "candidates"),
        ("{", "[", BundleAltered, FILE),
    ],
)
def test_other_descriptions_are_refused(
    folder: Path, old: str, new: str, error: type[Exception], message: str
) -> None:
    path = folder / FILE
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(error, match=message):
        reranker_folder.read(folder)
