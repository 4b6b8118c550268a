"""Whole runs of a tiny encoder: every system learns, a stop costs nothing, ranks agree."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file

from service.command_line import run
from tests.support.tiny_training import DIMENSION
from training.__main__ import app

ROOT = Path(__file__).parents[4]
BASE = """
[encoder]
name = "{model}"
[batch]
instances = 16
positives = 2
[optimizer]
steps = 12
learning_rate = 5e-3
precision = "fp32"
[validation]
rows = 8
every = 4
depth = 20
[system]
name = "{system}"
"""
SYSTEMS = {
    "rae": "",
    "dual-encoder": "",
    "ngame": "",
    "one-versus-all": "",
    "irene": "",
    "supcon-de": "",
}

Train = Callable[..., int]


@pytest.fixture
def train(model: Path, data: Path, tmp_path: Path) -> Train:
    """`train(out, *set, system=...)` runs the command and returns its exit status."""

    def trained(out: str, *changes: str, system: str = "rae", resume: bool = False) -> int:
        recipe = tmp_path / f"{system}.toml"
        recipe.write_text(BASE.format(model=model, system=system))
        arguments = ["train", str(recipe), "--data", str(data), "--out", str(tmp_path / out)]
        arguments += ["--set", *changes] if changes else []
        return run(app, arguments + (["--resume"] if resume else []))

    return trained


def on_two_ranks(*arguments: str | Path, port: int) -> None:
    """`python -m training train` as two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(port), "-m", "training", "train", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def losses(folder: Path) -> list[float]:
    lines = [orjson.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "last" / "weights.safetensors")


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_learns_and_leaves_an_ordinary_checkpoint(
    system: str, train: Train, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    assert train("run", "optimizer.steps=40", system=system) == 0

    course = losses(tmp_path / "run")
    assert len(course) == 40
    assert np.mean(course[-5:]) < 0.8 * np.mean(course[:5])
    loaded = SentenceTransformer(str(tmp_path / "run" / "best"), device="cpu")
    assert loaded.encode(["red tent"]).shape == (1, DIMENSION)
    facts = orjson.loads((tmp_path / "run" / "run.json").read_bytes())
    assert facts["settings"]["system"]["name"] == system
    assert 0 <= facts["choices"]["memorization"] <= 1


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("batch.hard_negatives=2", "refresh.every=5", "refresh.first=3", "refresh.top=4"),
        ("batch.order=clustered", "batch.cluster_size=4", "refresh.every=5"),
        ("optimizer.gradient_cache=true", "optimizer.accumulation=2"),
        ("validation.mixing=[0.5, 1.0]", "ngrams.buckets=512"),
        ("encoder.frozen=true", "ngrams.buckets=512", "ngrams.dropout=0.2"),
        ("encoder.frozen=true", "system.name=irene"),
    ],
    ids=["plain", "mined", "clustered", "cached", "mixed", "frozen", "own"],
)
def test_a_resumed_run_has_the_weights_of_an_unbroken_one(
    changes: Sequence[str], train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("unbroken", *changes) == 0
    stop_after(8, monkeypatch)
    with pytest.raises(SystemExit, match="130"):  # as of an interrupted command
        train("broken", *changes)
    monkeypatch.undo()

    assert train("broken", *changes, resume=True) == 0

    whole, again = weights(tmp_path / "unbroken"), weights(tmp_path / "broken")
    assert whole.keys() == again.keys()
    assert all(np.array_equal(whole[name], again[name]) for name in whole)
    assert losses(tmp_path / "unbroken") == losses(tmp_path / "broken")


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a run two steps after a state was saved at `steps`."""
    from training.loop.trainer import Trainer

    step = Trainer.take_step

    def interrupted(self: Trainer, number: int) -> None:
        if number == steps + 2:
            raise KeyboardInterrupt
        step(self, number)

    monkeypatch.setattr(Trainer, "take_step", interrupted)


def test_ngrams_learn_at_a_rate_of_their_own(model: Path) -> None:
    from training.loop.build_model import trainable_encoder
    from training.loop.optimizers import make_optimizers
    from training.recipes import recipe as recipes

    recipe = recipes.load("rae-moby", [f"encoder.name={model}", "ngrams.buckets=64"])
    module = trainable_encoder(recipe).model

    optimizer = make_optimizers(module, None, recipe)

    rates = [group["lr"] for group in optimizer.param_groups for _ in group["params"]]
    names = optimizer.names
    tables = [name for name in names if name.endswith("table.weight")]
    assert len(tables) == 1
    assert len(names) == len(set(names)) == len(list(module.parameters()))
    assert {name for name, rate in zip(names, rates, strict=True) if rate == 3e-3} == set(tables)
    assert rates.count(recipe.optimizer.learning_rate) == len(names) - 1


def test_parts_with_one_rate_are_clipped_apart() -> None:
    from torch import nn

    from training.loop.optimizers import make_optimizers
    from training.recipes import recipe as recipes

    recipe = recipes.load("rae-moby")
    optimizer = make_optimizers(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), recipe)

    assert optimizer.names == ["encoder/weight", "encoder/bias", "own/weight"]
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1, 1]


def test_a_checkpoint_keeps_its_ngrams(train: Train, tmp_path: Path) -> None:
    from training.loop.build_model import trainable_encoder
    from training.models.ngrams import CharacterNgrams
    from training.recipes import recipe as recipes

    assert train("run", "ngrams.buckets=512") == 0

    best = tmp_path / "run" / "best"
    again = recipes.load("rae-moby", [f"encoder.name={best}", "ngrams.buckets=64"])
    found = [part for part in trainable_encoder(again).model if isinstance(part, CharacterNgrams)]
    assert [part.buckets for part in found] == [512], "a checkpoint's own table is trained on"


@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("rae", ("ngrams.buckets=512", "ngrams.learning_rate=0.05")),
        ("one-versus-all", ("system.initial=labels", "batch.pool=all")),
        ("irene", ("optimizer.head_learning_rate=0.05", "system.objective=softmax")),
    ],
)
def test_beside_a_frozen_transformer_the_rest_learns(
    system: str, changes: Sequence[str], train: Train, model: Path, tmp_path: Path
) -> None:
    frozen = ("encoder.frozen=true", "optimizer.steps=40")
    assert train("run", *frozen, *changes, system=system) == 0

    course = losses(tmp_path / "run")
    assert np.mean(course[-5:]) < 0.8 * np.mean(course[:5])
    before = load_file(model / "model.safetensors")
    after = load_file(tmp_path / "run" / "best" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_classifiers_are_validated_in_the_labels_place(train: Train, tmp_path: Path) -> None:
    changes = ("encoder.frozen=true", "batch.pool=all", "optimizer.learning_rate=0.1")
    assert train("run", *changes, "validation.memorization=[0.0]", system="one-versus-all") == 0

    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    checks = [line for line in map(orjson.loads, lines) if line["kind"] == "validation"]
    recalls = [check["R@10 at 0"] for check in checks]
    assert recalls[-1] > recalls[0], "the encoder does not learn, so only W can be better"


def test_a_second_stage_begins_with_the_encoder_of_the_first(
    train: Train, model: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second, out = tmp_path / "first.toml", tmp_path / "second.toml", tmp_path / "run"
    first.write_text(BASE.format(model=model, system="ngame"))
    second.write_text(
        BASE.format(model=model, system="irene").replace(
            "[batch]", 'stage_one = "first.toml"\nfrozen = true\n[batch]'
        )
    )
    command = ["train", str(second), "--data", str(data), "--out", str(out)]

    assert run(app, command) == 0
    encoder = load_file(out / "encoder" / "best" / "model.safetensors")
    taken = load_file(out / "best" / "model.safetensors")
    untrained = load_file(model / "model.safetensors")
    assert all(np.array_equal(encoder[name], taken[name]) for name in encoder)
    assert not all(np.array_equal(encoder[name], untrained[name]) for name in encoder)
    own = load_file(out / "best" / "own.safetensors")
    assert own["weight"].shape == (16, DIMENSION)
    assert orjson.loads((out / "best" / "novel.json").read_bytes())["combiner"] == "attention"

    given = [*command[:-1], str(tmp_path / "given"), "--encoder", str(model)]
    assert run(app, given) == 0
    assert not (tmp_path / "given" / "encoder").exists()

    first.write_text(first.read_text() + "\n")
    other = tmp_path / "other.toml"
    other.write_text(second.read_text().replace("first.toml", "rae-moby"))
    capfd.readouterr()
    assert run(app, ["train", str(other), "--data", str(data), "--out", str(out)]) == 2
    assert "is not a run of rae-moby" in capfd.readouterr().err


def test_a_gradient_cache_changes_no_step(train: Train, tmp_path: Path) -> None:
    without_dropout = ("encoder.dropout=0.0", "optimizer.steps=4")
    assert train("direct", *without_dropout) == 0
    small = "optimizer.bucket_tokens=64"
    assert train("cached", *without_dropout, "optimizer.gradient_cache=true", small) == 0

    assert losses(tmp_path / "direct") == pytest.approx(losses(tmp_path / "cached"), rel=1e-4)


@pytest.mark.parametrize("cached", ["false", "true"])
def test_two_ranks_have_the_loss_of_one(
    cached: str, train: Train, data: Path, tmp_path: Path
) -> None:
    changes = ("encoder.dropout=0.0", f"optimizer.gradient_cache={cached}", "optimizer.steps=5")
    hard = ("batch.hard_negatives=1", "refresh.every=2", "refresh.top=4", "ngrams.buckets=512")
    assert train("one", *changes, *hard) == 0

    places = (tmp_path / "rae.toml", "--data", data, "--out", tmp_path / "two")
    on_two_ranks(*places, "--set", *changes, *hard, port=29_500 + (cached == "true"))

    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "two"), rel=1e-4)


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    """Equal but for rounding; it alone moves the keys' bias, which softmax ignores."""
    assert one.keys() == two.keys()
    for name, value in one.items():
        other = two[name]
        if name.endswith("attention.inward.bias"):
            third = len(value) // 3  # queries, keys, values
            value, other = (np.delete(own, np.s_[third : 2 * third]) for own in (value, other))
        assert value == pytest.approx(other, abs=1e-5), name


@pytest.mark.parametrize("system", ["one-versus-all", "irene"])
def test_two_ranks_move_a_systems_own_parameters_as_one_does(
    system: str, train: Train, data: Path, tmp_path: Path
) -> None:
    changes = ("encoder.dropout=0.0", "encoder.frozen=true", "optimizer.steps=5")
    changes += ("optimizer.clip=0.01", "optimizer.head_learning_rate=0.05")
    changes += ("system.dropout=0.0",) if system == "irene" else ()
    assert train("one", *changes, system=system) == 0

    places = (tmp_path / f"{system}.toml", "--data", data, "--out", tmp_path / "two")
    on_two_ranks(*places, "--set", *changes, port=29_502 + (system == "irene"))

    same(*(load_file(tmp_path / out / "best" / "own.safetensors") for out in ("one", "two")))


def test_a_run_goes_on_with_another_number_of_ranks(
    train: Train, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classifiers lie dealt out to two ranks, and so do their moments."""
    changes = ("encoder.dropout=0.0", "encoder.frozen=true", "system.dropout=0.0")
    changes += ("optimizer.head_learning_rate=0.05",)
    assert train("unbroken", *changes, system="irene") == 0
    stop_after(8, monkeypatch)
    with pytest.raises(SystemExit, match="130"):
        train("broken", *changes, system="irene")
    monkeypatch.undo()

    places = (tmp_path / "irene.toml", "--data", data, "--out", tmp_path / "broken")
    on_two_ranks(*places, "--resume", "--set", *changes, port=29_504)

    for file in ("weights.safetensors", "optimizer.safetensors"):
        same(*(load_file(tmp_path / run / "last" / file) for run in ("unbroken", "broken")))


def test_novel_labels_are_represented_as_the_paper_says_where_nothing_is_held_out(
    train: Train, tmp_path: Path
) -> None:
    assert train("run", "validation.rows=0", "encoder.frozen=true", system="irene") == 0

    novel = orjson.loads((tmp_path / "run" / "best" / "novel.json").read_bytes())
    refinement = novel["refinement"]
    assert (refinement["shortlist"], refinement["text_threshold"]) == (200, 0.15)
    assert (refinement["strength"], refinement["query_weight"]) == (1.0, 0.0)


def test_a_folder_with_a_run_is_not_trained_over(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("run") == 0
    capsys.readouterr()

    assert train("run") == 2
    assert "already holds a run; continue it with --resume" in capsys.readouterr().err
    assert train("run", "seed=1", resume=True) == 2
    assert "belongs to a run with another recipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("validation.rows=40",), "40 of 48 labelled rows are too many"),
        (("validation.metrics=['P@7']",), "'P@7' is not one of P@1, "),
        (("validation.mixing=[]",), "validation.mixing: "),
        (("batch.hard_negatives=1",), "batch.hard_negatives needs refresh.every above 0"),
        (("optimizer.precision=fp16",), "fp16 needs a GPU"),
        (("encoder.frozen=true",), "leaves nothing to train; set ngrams.buckets"),
        (("ngrams.frozen=true",), "ngrams.frozen requires encoder.frozen"),
        (("encoder.name=nowhere/none",), "encoder 'nowhere/none' cannot be loaded"),
        (("encoder.query_tokens=9999",), "max-tokens must lie in 1.."),
        (("system.taw=1.0",), "taw is unknown; known are tau, in_batch_instances"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    changes: Sequence[str],
    message: str,
    train: Train,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert train("run", *changes) == 2

    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
