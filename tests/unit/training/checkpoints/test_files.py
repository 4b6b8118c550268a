"""Files beside the weights: choices, the record of trained rows, and a reranker with its digest."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import save_file

from service.core.bundle.manifest import PredictorFacts
from service.core.errors import (
    BundleAltered,
    BundleMissing,
    BundleUnsupported,
    InvalidData,
    InvalidInput,
)
from tests.support.tiny.reranker import write_reranker
from training.checkpoints import reranker_folder, trained_texts
from training.checkpoints.choices import CHOICES, Choices, read_choices, write_choices
from training.checkpoints.reranker_folder import weights_digest
from training.checkpoints.trained_texts import TrainedTexts

CHOSEN = Choices(system="rae", tau=0.05, memorization=0.7, depth=100)
PREDICTOR = PredictorFacts(tau=0.1, depth=50, memorization=0.4)
TEXTS = ("tent", "boots", "lamp", "stove", "rope")


@pytest.mark.parametrize("relevance", [None, "given", "binary", "log"])
def test_choices_come_back(relevance: str | None, tmp_path: Path) -> None:
    choices = replace(CHOSEN, relevance=relevance)
    write_choices(tmp_path, choices)
    assert read_choices(tmp_path) == choices
    written = orjson.loads((tmp_path / CHOICES).read_bytes())
    assert written.get("relevance") == relevance and ("relevance" in written) == bool(relevance)
    assert read_choices(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("relevance", "loud"), ("relevance", 1), ("tau", "warm"), ("depth", 1.5), ("more", 1)],
)
def test_damage_is_refused(field: str, value: object, tmp_path: Path) -> None:
    write_choices(tmp_path, CHOSEN)
    document = orjson.loads((tmp_path / CHOICES).read_bytes())
    (tmp_path / CHOICES).write_bytes(orjson.dumps({**document, field: value}))
    with pytest.raises(
        InvalidData, match=r"keymatch\.json: .*is not what `train` writes"
    ) as raised:
        read_choices(tmp_path)
    assert field in str(raised.value)


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_rows_of_a_run_and_of_its_parent_are_seen_and_all_others_are_not() -> None:
    parent = TrainedTexts().after(TEXTS, trained=rows(0, 1), held_out=rows(2))
    assert parent.unseen(TEXTS).tolist() == [False, False, True, True, True]
    assert parent.unseen(("knife", "tent")).tolist() == [True, False]
    assert parent.unseen_before(TEXTS).all()
    child = parent.after(TEXTS, trained=rows(1, 3), held_out=rows(2))
    assert child.unseen(TEXTS).tolist() == [False, False, True, False, True]
    assert child.unseen_before(TEXTS).tolist() == [False, False, True, True, True]


def test_a_text_that_is_held_out_as_well_counts_as_held_out() -> None:
    """Two rows may have the same text, one held out and one not."""
    texts = ("tent", "boots", "tent")
    record = TrainedTexts().after(texts, trained=rows(0, 1), held_out=rows(2))
    assert record.unseen(texts).tolist() == [True, False, True]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert trained_texts.read(tmp_path) is None
    first = TrainedTexts().after(TEXTS, trained=rows(0), held_out=rows())
    record = first.after(TEXTS, trained=rows(1, 2), held_out=rows(3))
    trained_texts.write(record, tmp_path)
    again = trained_texts.read(tmp_path)
    assert again is not None
    assert np.array_equal(again.before, record.before) and np.array_equal(again.own, record.own)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / trained_texts.FILE).write_bytes(content)
    with pytest.raises(InvalidData, match=r"trained_texts\.npz: is not what `train` writes"):
        trained_texts.read(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    options = {"candidates": 7, "weights": "those of rae"}
    return write_reranker(tmp_path / "second", ["red tent", "lamp"], PREDICTOR, **options)


def test_what_is_written_is_read_with_its_checkpoint_and_copied(
    folder: Path, tmp_path: Path
) -> None:
    files = reranker_folder.read(folder, weights="those of rae")
    assert (files.facts.candidates, files.facts.predictor) == (7, PREDICTOR)
    (tmp_path / "other").mkdir()
    reranker_folder.copy(folder, tmp_path / "other")
    assert reranker_folder.read(tmp_path / "other").facts == files.facts
    reranker_folder.copy(tmp_path, tmp_path / "other")  # nothing to copy
    assert not reranker_folder.is_reranker(tmp_path)
    with pytest.raises(BundleMissing, match="no reranker was written there"):
        reranker_folder.read(tmp_path)
    with pytest.raises(InvalidInput, match=r"second was learned from .* another checkpoint"):
        reranker_folder.read(folder, weights="those of unidec")


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('"version": 1', '"version": 9', BundleUnsupported, "version"),
        ('"candidates": 7', '"candidates": 8', BundleAltered, r"are not those of reranker\.json"),
        ('"candidates": 7', '"candidates": 0', BundleAltered, "candidates"),
        ("{", "[", BundleAltered, reranker_folder.FILE),
    ],
)
def test_other_descriptions_are_refused(
    folder: Path, old: str, new: str, error: type[Exception], message: str
) -> None:
    path = folder / reranker_folder.FILE
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(error, match=message):
        reranker_folder.read(folder)


def checkpoint(folder: Path, *, weight: float = 1.0) -> Path:
    (folder / "0_Transformer").mkdir(parents=True)
    save_file({"w": np.full(3, weight)}, folder / "0_Transformer" / "model.safetensors")
    np.save(folder / "label_keys.npy", np.zeros((2, 3), np.float16))
    (folder / "keymatch.json").write_text('{"memorization": 0.2}')
    return folder


def test_only_every_weight_counts_for_the_digest(tmp_path: Path) -> None:
    first, same = checkpoint(tmp_path / "first"), checkpoint(tmp_path / "same")
    (same / "keymatch.json").write_text('{"memorization": 0.4}')
    (same / "reranker").mkdir()
    np.save(same / "reranker" / "words.npy", np.zeros(3))
    assert weights_digest(first) == weights_digest(same)

    learned_more = checkpoint(tmp_path / "learned more", weight=1.5)
    other_keys = checkpoint(tmp_path / "other keys")
    np.save(other_keys / "label_keys.npy", np.ones((2, 3), np.float16))
    without_keys = checkpoint(tmp_path / "without keys")
    (without_keys / "label_keys.npy").unlink()
    folders = (first, learned_more, other_keys, without_keys)
    assert len({weights_digest(folder) for folder in folders}) == 4
