"""The digest of a checkpoint depends only on its weights."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from training.checkpoints.weights_digest import weights_digest


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
