"""A reranker's folder is read as it was written; another checkpoint and damage are named."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from service.core.bundle.manifest import PredictorFacts
from service.core.errors import BundleAltered, BundleMissing, BundleUnsupported, InvalidInput
from tests.support.tiny.reranker import write_reranker
from training.checkpoints import reranker_folder
from training.checkpoints.reranker_folder import FILE, weights_digest

PREDICTOR = PredictorFacts(tau=0.1, depth=50, memorization=0.4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    options = {"candidates": 7, "weights": "those of rae"}
    return write_reranker(tmp_path / "second", ["red tent", "lamp"], PREDICTOR, **options)


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


def checkpoint(folder: Path, *, weight: float = 1.0) -> Path:
    (folder / "0_Transformer").mkdir(parents=True)
    save_file({"w": np.full(3, weight)}, folder / "0_Transformer" / "model.safetensors")
    np.save(folder / "label_keys.npy", np.zeros((2, 3), np.float16))
    (folder / "keymatch.json").write_text('{"memorization": 0.2}')
    return folder


def test_settings_and_a_reranker_do_not_count(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "first")
    second = checkpoint(tmp_path / "second")
    (second / "keymatch.json").write_text('{"memorization": 0.4}')
    (second / "reranker").mkdir()
    np.save(second / "reranker" / "words.npy", np.zeros(3))
    assert weights_digest(first) == weights_digest(second)


def test_every_weight_counts(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "first")
    learned_more = checkpoint(tmp_path / "learned more", weight=1.5)
    other_keys = checkpoint(tmp_path / "other keys")
    np.save(other_keys / "label_keys.npy", np.ones((2, 3), np.float16))
    without_keys = checkpoint(tmp_path / "without keys")
    (without_keys / "label_keys.npy").unlink()
    folders = (first, learned_more, other_keys, without_keys)
    assert len({weights_digest(folder) for folder in folders}) == 4
