"""Runs of the tiny encoder: every system learns, and frozen parts do not change."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
import torch
from safetensors.numpy import load_file

from tests.support.tiny.training import (
    DIMENSION,
    losses,
    open_tiny_run,
    tiny_dataset,
    with_colour_metadata,
    write_recipe,
)
from training.loop.build_model import make_embedder, token_table, trainable_encoder
from training.recipes import recipe as recipes
from training.systems.registry import SYSTEMS

HEADS = ("heads.encoder=16", "heads.classifier=16", "heads.learning_rate=5e-3")
NEEDED = {
    "unidec": HEADS,
    "ngame-classifiers": HEADS,
}  # settings that a system requires


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_learns_and_writes_an_ordinary_checkpoint(
    system: str, model: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    recipe, run = write_recipe(tmp_path, model=model, system=system), tmp_path / "run"
    steps = ("optimizer.steps=40", "validation.every=40")
    data = with_colour_metadata(tiny_dataset())  # metadata for the systems that read it
    open_tiny_run(recipe, run, *steps, *NEEDED.get(system, ()), dataset=data).train()

    assert_learned(run)
    loaded = SentenceTransformer(str(run / "best"), device="cpu", trust_remote_code=True)
    assert loaded.encode(["red tent"]).shape == (1, DIMENSION)


def assert_learned(run: Path) -> None:
    course = losses(run)
    assert len(course) == 40
    assert np.mean(course[-5:]) < 0.8 * np.mean(course[:5])


@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("rae", ("ngrams.buckets=512", "ngrams.learning_rate=0.05")),
        ("one-versus-all", ("system.initial=labels", "batch.pool=all")),
        ("irene", ("optimizer.head_learning_rate=0.05", "system.objective=softmax")),
        ("unidec", (*HEADS, "ngrams.buckets=512", "optimizer.head_learning_rate=0.05")),
        ("unidec", (*HEADS, "system.encoder_weight=0", "system.normalized=false")),
    ],
)
def test_beside_a_frozen_transformer_ngrams_or_the_head_learn(
    system: str, changes: Sequence[str], model: Path, tmp_path: Path
) -> None:
    recipe, run = write_recipe(tmp_path, model=model, system=system), tmp_path / "run"
    steps = ("optimizer.steps=40", "validation.every=40")
    open_tiny_run(recipe, run, "encoder.frozen=true", *steps, *changes).train()

    assert_learned(run)
    before = load_file(model / "model.safetensors")
    after = load_file(run / "best" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_what_learns_beside_a_frozen_transformer_lies_on_its_device(model: Path) -> None:
    """Systems need vectors before the first step. Every machine has the device `meta`."""
    changes = ("encoder.frozen=true", "ngrams.buckets=64", "optimizer.precision=fp32")
    recipe = recipes.load("rae-moby", [f"encoder.name={model}", "encoder.query_tokens=8", *changes])
    encoder = trainable_encoder(recipe)
    table = token_table(encoder, tiny_dataset(), recipe)
    accelerator = SimpleNamespace(device=torch.device("meta"), num_processes=1)

    embedder = make_embedder(encoder, table, recipe, accelerator)

    parts = [*embedder.module.parameters(), *embedder.module.buffers()]
    assert parts and all(part.is_meta for part in parts)


def test_classifiers_are_validated_in_place_of_label_vectors(model: Path, tmp_path: Path) -> None:
    recipe, run = write_recipe(tmp_path, model=model, system="one-versus-all"), tmp_path / "run"
    changes = ("encoder.frozen=true", "batch.pool=all", "optimizer.learning_rate=0.1")
    steps = ("optimizer.steps=12", "validation.memorization=[0.0]")
    open_tiny_run(recipe, run, *changes, *steps).train()

    lines = map(orjson.loads, (run / "metrics.jsonl").read_bytes().splitlines())
    recalls = [line["R@10 at 0"] for line in lines if line["kind"] == "validation"]
    assert recalls[-1] > recalls[0], "the encoder is frozen, so only W can be better"


def test_a_checkpoint_keeps_its_ngrams(model: Path, tmp_path: Path) -> None:
    from training.loop.build_model import trainable_encoder
    from training.models.ngrams import CharacterNgrams
    from training.recipes import recipe as recipes

    run = tmp_path / "run"
    changes = ("ngrams.buckets=512", "optimizer.steps=1")
    open_tiny_run(write_recipe(tmp_path, model=model), run, *changes).train()

    again = recipes.load("rae-moby", [f"encoder.name={run / 'best'}", "ngrams.buckets=64"])
    ngrams = [part for part in trainable_encoder(again).model if isinstance(part, CharacterNgrams)]
    assert [part.buckets for part in ngrams] == [512], "a checkpoint's table is trained on"


@pytest.mark.parametrize("changes", [(), ("encoder.frozen=true", "ngrams.buckets=512")])
def test_further_queries_have_the_vectors_of_equal_training_texts(
    changes: Sequence[str], model: Path, tmp_path: Path
) -> None:
    trainer = open_tiny_run(write_recipe(tmp_path, model=model), tmp_path / "run", *changes)
    instances, _ = trainer.model.vectors(lambda done, total: None)
    texts = tiny_dataset().train.instances.texts[5:9]
    vectors = trainer.model.query_vectors(texts, max_tokens=32)
    np.testing.assert_allclose(vectors, instances[5:9], atol=1e-6)


@pytest.mark.parametrize("mixing", ["[1.0]", "[0.5]", "[0.5, 1.0]"])
def test_the_vectors_of_the_last_check_are_those_of_the_checkpoint(
    mixing: str, model: Path, tmp_path: Path
) -> None:
    recipe, run = write_recipe(tmp_path, model=model), tmp_path / "run"
    steps = ("optimizer.steps=20", "validation.every=20", "validation.untrained=false")
    trainer = open_tiny_run(recipe, run, *steps, f"validation.mixing={mixing}")
    trainer.train()

    kept = trainer.kept_vectors
    assert kept is not None
    trainer.model.load_checkpoint(trainer.best)
    for vectors, again in zip(kept, trainer.model.vectors(lambda done, total: None), strict=True):
        np.testing.assert_allclose(vectors, again, atol=1e-6)


def test_in_a_large_memory_a_sample_decides_how_weights_are_mixed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.loop.trainer.SAMPLED", 20)
    recipe, run = write_recipe(tmp_path, model=model), tmp_path / "run"
    steps = ("optimizer.steps=20", "validation.every=20", "validation.untrained=false")
    trainer = open_tiny_run(recipe, run, *steps, "validation.mixing=[0.0, 1.0]")
    encoded: list[int] = []
    trainer.journal.encoded = lambda done, total: encoded.append(total)
    trainer.train()

    texts = len(trainer.model.embedder.table)
    assert texts >= 40
    assert sorted(set(encoded))[-1] == texts and sorted(set(encoded))[0] < texts
    assert trainer.progress.best_mixing in (0.0, 1.0)
    assert trainer.kept_vectors is not None
    assert all(np.abs(vectors).sum(axis=1).all() for vectors in trainer.kept_vectors)
