"""SiameseXML: classifiers start as label vectors and learn while the encoder is frozen."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.support.tiny.training import losses, open_tiny_run, write_recipe


def test_over_a_frozen_encoder_the_residuals_learn(model: Path, tmp_path: Path) -> None:
    recipe, run = write_recipe(tmp_path, model=model, system="siamese-xml"), tmp_path / "run"
    frozen = ("encoder.frozen=true", "optimizer.head_learning_rate=0.05")
    trainer = open_tiny_run(recipe, run, *frozen, "optimizer.steps=40", "validation.every=40")
    _, labels = trainer.model.vectors(lambda done, total: None)
    system = trainer.model.system

    np.testing.assert_allclose(system.label_keys(labels), labels, atol=1e-6)
    trainer.train()

    course = losses(run)
    assert np.mean(course[-5:]) < 0.8 * np.mean(course[:5])
    before, after = (load_file(each / "model.safetensors") for each in (model, run / "best"))
    assert all(np.array_equal(before[name], after[name]) for name in before)
    keys = system.label_keys(labels)
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1.0, atol=1e-5)
    assert len({tuple(offset) for offset in np.round(keys - labels, 3)}) == len(labels), (
        "each label has a residual of its own"
    )
