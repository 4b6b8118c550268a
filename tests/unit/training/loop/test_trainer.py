"""Runs of the tiny encoder: they learn, end in time, stop at errors, and resume bit for bit."""

import math
import os
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from shutil import copytree
from signal import SIGINT, SIGTERM
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import orjson
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

from service.command_line import Interrupted, open_console
from service.core.errors import Diverged, InvalidData
from tests.support.tiny.training import (
    DIMENSION,
    last_weights,
    losses,
    open_tiny_run,
    tiny_dataset,
    train_tiny,
    with_colour_metadata,
    write_recipe,
)
from training import progress as progress_lines
from training.checkpoints.run_json import BEST, saved_step, write_run
from training.datasets import lf_xmc
from training.loop.batch_source import BatchSource, Neighbourhoods
from training.loop.build_model import make_embedder, token_table, trainable_encoder
from training.loop.interruption import Interruption
from training.loop.model import TrainedModel
from training.loop.state import Progress
from training.loop.trainer import Length, Trainer, length_of
from training.recipes import recipe as recipes
from training.systems.registry import SYSTEMS

DATA = with_colour_metadata(tiny_dataset())  # metadata for the systems that read it
HEADS = ("heads.encoder=16", "heads.classifier=16", "heads.learning_rate=5e-3")
NEEDED = {"unidec": HEADS, "ngame-classifiers": HEADS}  # settings that a system requires
FORTY = ("optimizer.steps=40", "validation.every=40")
ONE_CHECK = ("optimizer.steps=20", "validation.every=20", "validation.untrained=false")
CLUSTERED = "batch.order=clustered"
MINED = "batch.hard_negatives=1"
TEN_A_STEP = "batch.instances=10"  # an epoch of a hundred rows has ten steps
TOO_FAST = ("optimizer.learning_rate=1e30", "optimizer.warmup=0.0")
VARIANTS = {
    "mined": ("batch.hard_negatives=2", "refresh.every=5", "refresh.first=3", "refresh.top=4"),
    "clustered": ("batch.order=clustered", "batch.cluster_size=4", "refresh.every=5"),
    "cached": ("optimizer.gradient_cache=true", "optimizer.accumulation=2"),
    "mixed": ("validation.mixing=[0.5, 1.0]", "ngrams.buckets=512"),
    "frozen": ("encoder.frozen=true", "ngrams.buckets=512", "ngrams.dropout=0.2"),
    "lora": ("lora.rank=2", "lora.dropout=0.2", "validation.mixing=[0.5, 1.0]"),
    "head": ("encoder.frozen=true", "system.name=irene"),
    "items": ("system.name=oak", "batch.order=clustered", "refresh.every=3"),
    "projection": ("guidance.oracle={oracle}", "guidance.projection=learned"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def recipe(model: Path, tmp_path: Path) -> Path:
    return write_recipe(tmp_path, model=model)


def assert_learned(run: Path) -> None:
    course = losses(run)
    assert len(course) == 40
    assert np.mean(course[-5:]) < 0.8 * np.mean(course[:5])


def checks(run: Path) -> list[dict[str, float]]:
    lines = map(orjson.loads, (run / "metrics.jsonl").read_bytes().splitlines())
    return [line for line in lines if line["kind"] == "validation"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_learns_and_writes_an_ordinary_checkpoint(
    system: str, model: Path, run: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    recipe = write_recipe(run.parent, model=model, system=system)
    open_tiny_run(recipe, run, *FORTY, *NEEDED.get(system, ()), dataset=DATA).train()

    assert_learned(run)
    loaded = SentenceTransformer(str(run / "best"), device="cpu", trust_remote_code=True)
    assert loaded.encode(["red tent"]).shape == (1, DIMENSION)


@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("rae", ("ngrams.buckets=512", "ngrams.learning_rate=0.05")),
        ("one-versus-all", ("system.initial=labels", "batch.pool=all")),
        ("irene", ("optimizer.head_learning_rate=0.05", "system.objective=softmax")),
        ("siamese-xml", ("optimizer.head_learning_rate=0.05",)),
        ("ngame-classifiers", (*HEADS, "optimizer.head_learning_rate=0.05")),
        ("unidec", (*HEADS, "ngrams.buckets=512", "optimizer.head_learning_rate=0.05")),
        ("unidec", (*HEADS, "system.encoder_weight=0", "system.normalized=false")),
    ],
)
def test_beside_a_frozen_transformer_ngrams_or_the_head_learn(
    system: str, changes: Sequence[str], model: Path, run: Path
) -> None:
    recipe = write_recipe(run.parent, model=model, system=system)
    open_tiny_run(recipe, run, "encoder.frozen=true", *FORTY, *changes).train()

    assert_learned(run)
    before, after = (load_file(each / "model.safetensors") for each in (model, run / "best"))
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


def test_classifiers_are_validated_at_equal_distances_in_place_of_label_vectors(
    model: Path, run: Path
) -> None:
    recipe = write_recipe(run.parent, model=model, system="one-versus-all")
    changes = ("encoder.frozen=true", "batch.pool=all", "optimizer.learning_rate=0.1")
    steps = ("optimizer.steps=12", "validation.checks=4", "validation.memorization=[0.0]")
    open_tiny_run(recipe, run, *changes, *steps).train()

    assert [check["step"] for check in checks(run)] == [3, 6, 9, 12]
    recalls = [check["R@10 at 0"] for check in checks(run)]
    assert recalls[-1] > recalls[0], "the encoder is frozen, so only W can be better"


@pytest.mark.parametrize("changes", [(), ("encoder.frozen=true", "ngrams.buckets=512")])
def test_further_queries_have_the_vectors_of_equal_training_texts(
    changes: Sequence[str], recipe: Path, run: Path
) -> None:
    trainer = open_tiny_run(recipe, run, *changes)
    instances, _ = trainer.model.vectors(lambda done, total: None)
    texts = tiny_dataset().train.instances.texts[5:9]
    vectors = trainer.model.query_vectors(texts, max_tokens=32)
    np.testing.assert_allclose(vectors, instances[5:9], atol=1e-6)


@pytest.mark.parametrize("mixing", ["[1.0]", "[0.5]", "[0.5, 1.0]"])
def test_the_vectors_of_the_last_check_are_those_of_the_checkpoint(
    mixing: str, recipe: Path, run: Path
) -> None:
    trainer = open_tiny_run(recipe, run, *ONE_CHECK, f"validation.mixing={mixing}")
    trainer.train()

    kept = trainer.kept_vectors
    assert kept is not None
    trainer.model.load_checkpoint(trainer.best)
    for vectors, again in zip(kept, trainer.model.vectors(lambda done, total: None), strict=True):
        np.testing.assert_allclose(vectors, again, atol=1e-6)


def test_in_a_large_memory_a_sample_decides_how_weights_are_mixed(
    recipe: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.loop.trainer.SAMPLED", 20)
    trainer = open_tiny_run(recipe, run, *ONE_CHECK, "validation.mixing=[0.0, 1.0]")
    encoded: list[int] = []
    trainer.journal.encoded = lambda done, total: encoded.append(total)
    trainer.train()

    texts = len(trainer.model.embedder.table)
    assert texts >= 40
    assert max(encoded) == texts and min(encoded) < texts
    assert trainer.progress.best_mixing in (0.0, 1.0)
    assert trainer.kept_vectors is not None
    assert all(np.abs(vectors).sum(axis=1).all() for vectors in trainer.kept_vectors)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (["optimizer.steps=7"], 7),
        (["optimizer.epochs=3", "batch.instances=10"], 30),
        (["optimizer.epochs=0.5", "batch.instances=30"], 2),
        (["optimizer.epochs=1", "batch.instances=10", "optimizer.accumulation=5"], 2),
        (["optimizer.epochs=0.001"], 1),
    ],
)
def test_steps_of_a_run_on_a_hundred_rows(settings: list[str], steps: int) -> None:
    assert length_of(recipes.load("rae", settings), rows=100) == Length(steps=steps)


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ([CLUSTERED], [0]),
        ([CLUSTERED, "refresh.every=8"], [0, 8, 16, 24]),
        ([CLUSTERED, "refresh.every_epochs=1"], [0, 10, 20]),
        ([CLUSTERED, "refresh.every_epochs=0.75"], [0, 8, 16, 24]),
        ([CLUSTERED, "refresh.every_epochs=1", "optimizer.accumulation=2"], [0, 5, 10, 15, 20, 25]),
        ([CLUSTERED, "refresh.every_epochs=1", "refresh.first=4"], [0, 4, 14, 24]),
        ([MINED, "refresh.every_epochs=1", "refresh.first=4"], [4, 14, 24]),
        (["refresh.every_epochs=1"], []),  # nothing needs the vectors
    ],
)
def test_the_steps_of_a_refresh_on_a_hundred_rows(settings: list[str], due: list[int]) -> None:
    source = BatchSource(
        recipe=recipes.load("rae", [TEN_A_STEP, *settings]),
        data=SimpleNamespace(rows=np.arange(100)),
        neighbourhoods=Neighbourhoods(),
    )
    assert [step for step in range(30) if source.refresh_is_due(step)] == due


def test_a_run_is_as_far_as_its_steps_or_its_time() -> None:
    length = Length(steps=100, seconds=60.0)
    assert length.place(Progress(step=10, seconds=3.0)) == 10
    assert length.place(Progress(step=10, seconds=30.0)) == 50
    assert not length.is_over(Progress(step=99, seconds=59.0))
    assert length.is_over(Progress(step=100, seconds=1.0))
    assert length.is_over(Progress(step=3, seconds=61.0))
    assert Length(steps=5).place(Progress(step=4, seconds=1e9)) == 4


def test_a_run_ends_when_its_minutes_are_over_and_says_how_long_that_takes(
    recipe: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All steps would take hours, but the run ends after three seconds."""
    monkeypatch.setattr(progress_lines, "SECONDS", 0.0)  # prints a line at each step
    limits = ("optimizer.steps=1000000", "optimizer.minutes=0.05", "validation.checks=1")
    progress = open_tiny_run(recipe, run, *limits, console=open_console()).train()
    assert 1 <= progress.step < 1_000_000
    assert len(losses(run)) == progress.step
    assert progress.seconds < 30
    said = capsys.readouterr().err
    left = re.findall(r"^train: .* %\), (.+) left, step [\d,]+, loss ", said, re.M)
    assert len(left) > 2
    assert all(re.fullmatch(r"\d s", one) for one in left)
    assert re.search(r"^train: [89]\d\d,\d{3} of 1,000,000 \((8|9)\d %\)", said, re.M)


def test_a_run_that_diverges_names_step_rate_and_checkpoint(
    recipe: Path, data: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lf_xmc.write(lf_xmc.read(data), run.parent / "data")
    assert train_tiny(run.parent, "run", *TOO_FAST, recipe="rae") == 2
    said = capsys.readouterr().err
    assert re.search(r"not finite at step 2, with a learning rate of \S+e\+[23]", said)
    assert f"{run}/best has the checkpoint of step 0" in said
    assert "smaller optimizer.learning_rate" in said
    assert all(map(math.isfinite, losses(run)))
    assert (run / "best/modules.json").is_file() and not (run / "run.json").exists()


def after_backward(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[TrainedModel, Tensor, int], Tensor]
) -> None:
    """Make batch `n`, counted from 1, return `change(model, loss, n)` as its loss."""
    backward, numbers = TrainedModel.backward, count(1)

    def planted(self: TrainedModel, *batch: object, **options: object) -> Tensor:
        loss = backward(self, *batch, **options)  # type: ignore[arg-type]
        return change(self, loss, next(numbers))

    monkeypatch.setattr(TrainedModel, "backward", planted)


def test_the_last_good_checkpoint_and_state_stay(
    recipe: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first validation, after step 4, writes both; the loss of step 6 is infinite."""
    trainer = open_tiny_run(recipe, run, "validation.untrained=false")
    after_backward(monkeypatch, lambda model, loss, n: loss + math.inf if n == 6 else loss)
    with pytest.raises(Diverged, match=r"the loss \(inf\) is not finite at step 6.*of step 4"):
        trainer.train()
    assert trainer.progress.step == 5
    for weights in (load_file(run / "best/model.safetensors"), last_weights(run)):
        assert all(abs(value).max() < math.inf for value in weights.values())


def test_a_gradient_that_is_not_finite_moves_nothing(
    recipe: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflow(model: TrainedModel, loss: Tensor, n: int) -> Tensor:
        parameters = model.embedder.module.parameters()
        next(p for p in parameters if p.grad is not None).grad.fill_(1e38)
        return loss

    trainer = open_tiny_run(recipe, run)
    after_backward(monkeypatch, overflow)
    before = [p.detach().clone() for p in trainer.model.embedder.module.parameters()]
    with pytest.raises(Diverged, match="the gradient is not finite at step 1"):
        trainer.train()
    after = trainer.model.embedder.module.parameters()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def before_step(step: int, act: Callable[[Trainer], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make trainers call `act` before this step."""
    take_step = Trainer.take_step

    def acting(self: Trainer, number: int) -> None:
        if number == step:
            act(self)
        take_step(self, number)

    monkeypatch.setattr(Trainer, "take_step", acting)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_has_the_weights_of_an_unbroken_one(
    variant: str, recipe: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(model, tmp_path / "oracle" / BEST)
    write_run(tmp_path / "oracle", {"dataset": "colours", "settings": {}})
    changes = [change.format(oracle=tmp_path / "oracle") for change in VARIANTS[variant]]

    def opened(name: str, *, resume: bool = False) -> Trainer:
        return open_tiny_run(recipe, tmp_path / name, *changes, resume=resume, dataset=DATA)

    opened("unbroken").train()
    stop = Mock(side_effect=KeyboardInterrupt)
    before_step(6, stop, monkeypatch)  # two steps after the last saved state
    with pytest.raises(KeyboardInterrupt):
        opened("broken").train()
    monkeypatch.undo()

    resumed = opened("broken", resume=True)
    assert resumed.progress.step == 4
    resumed.train()

    unbroken, broken = last_weights(tmp_path / "unbroken"), last_weights(tmp_path / "broken")
    assert unbroken.keys() == broken.keys()
    assert all(np.array_equal(unbroken[name], broken[name]) for name in unbroken)
    assert losses(tmp_path / "unbroken") == losses(tmp_path / "broken")
    if variant == "projection":
        learned = unbroken["training-only/weight"]
        assert not np.array_equal(learned, np.eye(len(learned)))


def test_after_a_signal_the_state_of_the_newest_step_is_saved(
    recipe: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_step(4, lambda trainer: setattr(trainer.interruption, "number", SIGINT), monkeypatch)
    with pytest.raises(Interrupted):
        open_tiny_run(recipe, run).train()
    assert saved_step(run) == 5


def test_a_folder_with_a_run_is_not_overwritten(recipe: Path, run: Path) -> None:
    steps = "optimizer.steps=1"
    open_tiny_run(recipe, run, steps).train()

    with pytest.raises(InvalidData, match="already holds a run; continue it with --resume"):
        open_tiny_run(recipe, run, steps)
    with pytest.raises(InvalidData, match="belongs to a run with another recipe"):
        open_tiny_run(recipe, run, steps, "seed=1", resume=True)


def test_a_gradient_cache_changes_no_step(recipe: Path, tmp_path: Path) -> None:
    changes = ("encoder.dropout=0.0", "optimizer.steps=4", "optimizer.bucket_tokens=64")
    open_tiny_run(recipe, tmp_path / "direct", *changes).train()
    open_tiny_run(recipe, tmp_path / "cached", *changes, "optimizer.gradient_cache=true").train()

    assert losses(tmp_path / "direct") == pytest.approx(losses(tmp_path / "cached"), rel=1e-4)


def test_the_first_signal_is_noted_and_one_after_a_second_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interruption, time = Interruption(), [100.0]
    monkeypatch.setattr("training.loop.interruption.monotonic", lambda: time[0])
    with interruption.handled(), interruption.noted():
        for later in (0.0, 0.5):
            time[0] += later
            os.kill(os.getpid(), SIGINT)
            assert interruption.number == SIGINT
        time[0] += 1.0
        with pytest.raises(Interrupted) as raised:
            os.kill(os.getpid(), SIGTERM)
    assert raised.value.status == 143


def test_outside_the_block_that_looks_at_it_a_signal_ends_the_run() -> None:
    with Interruption().handled(), pytest.raises(Interrupted) as raised:
        os.kill(os.getpid(), SIGINT)
    assert (raised.value.status, str(raised.value)) == (130, "SIGINT")
