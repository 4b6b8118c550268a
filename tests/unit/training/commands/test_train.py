"""The train command: the files of a run, two stages, its last output, and errors in one line."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file

from tests.support.commands import status_of
from tests.support.tiny.training import DIMENSION, write_recipe
from training.__main__ import app
from training.recipes import recipe as recipes

Train = Callable[..., int]
Said = pytest.CaptureFixture[str]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def train(model: Path, data: Path, out: Path) -> Train:
    """`train(*set, system=...)` trains into `out` and returns the exit status."""

    def trained(*changes: str, system: str = "rae", options: Sequence[object] = ()) -> int:
        recipe = write_recipe(out.parent, model=model, system=system)
        given = ("--set", *changes) if changes else ()
        return status_of(app, "train", recipe, "--data", data, "--out", out, *options, *given)

    return trained


def read(path: Path) -> Any:
    return orjson.loads(path.read_bytes())


def test_a_run_describes_itself_and_takes_irenes_numbers_without_held_out_rows(
    train: Train, out: Path
) -> None:
    changes = ("validation.rows=0", "encoder.frozen=true", "optimizer.steps=2")
    assert train(*changes, system="irene") == 0
    facts = read(out / "run.json")
    assert (facts["settings"]["system"]["name"], facts["progress"]["step"]) == ("irene", 2)
    assert 0 <= facts["choices"]["memorization"] <= 1
    assert read(out / "best" / "keymatch.json") == facts["choices"]
    refinement = read(out / "best" / "novel.json")["refinement"]
    assert (refinement["shortlist"], refinement["text_threshold"]) == (200, 0.15)
    assert (refinement["strength"], refinement["query_weight"]) == (1.0, 0.0)


def test_a_second_stage_begins_with_the_encoder_of_the_first(
    model: Path, data: Path, out: Path, capfd: Said
) -> None:
    write_recipe(out.parent, model=model, system="ngame")
    second, other = write_recipe(out.parent, model=model, system="irene"), out.parent / "other.toml"
    stage_one = 'stage_one = "ngame.toml"\nfrozen = true\n[batch]'
    second.write_text(second.read_text().replace("[batch]", stage_one))
    command = ("train", second, "--data", data, "--out")

    assert status_of(app, *command, out, "--set", "optimizer.steps=4") == 0
    encoder = load_file(out / "encoder" / "best" / "model.safetensors")
    taken = load_file(out / "best" / "model.safetensors")
    untrained = load_file(model / "model.safetensors")
    assert all(np.array_equal(encoder[name], taken[name]) for name in encoder)
    assert not all(np.array_equal(encoder[name], untrained[name]) for name in encoder)
    head = load_file(out / "best" / "own.safetensors")
    assert head["weight"].shape == (16, DIMENSION)
    assert read(out / "best" / "novel.json")["combiner"] == "attention"

    given = (out.parent / "given", "--encoder", model, "--set", "optimizer.steps=1")
    assert status_of(app, *command, *given) == 0
    assert not (out.parent / "given" / "encoder").exists()

    other.write_text(second.read_text().replace("ngame.toml", "rae-moby"))
    capfd.readouterr()
    assert status_of(app, "train", other, "--data", data, "--out", out) == 2
    assert "is not a run of rae-moby" in capfd.readouterr().err


def test_a_run_that_ends_below_the_untrained_encoder_says_so_in_its_last_line(
    train: Train, out: Path, capsys: Said
) -> None:
    assert train("optimizer.learning_rate=100.0") == 0
    progress = read(out / "run.json")["progress"]
    assert (progress["best_step"], progress["step"]) == (0, 8)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith(f"{out}/best: step 0 of 8, ")
    assert lines[-1] == (
        "training made the encoder worse on the held-out rows: the one that it started from is"
        " kept. Try a smaller learning rate, or `keymatch fit`"
    )


@pytest.mark.parametrize(
    ("change", "system"), [("validation.rows=0", "rae"), ("encoder.frozen=true", "irene")]
)
def test_the_untrained_encoder_competes_neither_without_rows_nor_with_a_head(
    change: str, system: str, train: Train, out: Path, capsys: Said
) -> None:
    rates = ("optimizer.learning_rate=100.0", "optimizer.head_learning_rate=100.0")
    assert train(*rates, change, system=system) == 0
    assert read(out / "run.json")["progress"]["best_step"] > 0
    assert "the one that it started from is kept" not in capsys.readouterr().out


def test_the_table_of_recipes_fits_a_terminal_and_says_when_to_use_each(
    capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert status_of(app, "recipes") == 0

    lines, names = capsys.readouterr().out.splitlines(), recipes.names(recipes.GENERAL)
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if re.match(r" \S", line)] == names
    for name in names:
        assert re.search(r"\b(where|within)\b", recipes.summary(name)), name


def test_there_must_be_something_to_resume(train: Train, out: Path, capsys: Said) -> None:
    assert train(options=["--resume"]) == 2
    assert "there is nothing to resume; check --out" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["validation.rows=40"], "40 of 48 labelled rows are too many"),
        (["validation.metrics=['P@7']", "validation.every=1"], "'P@7' is not one of P@1, "),
        (["validation.mixing=[]"], "validation.mixing: "),
        (["batch.hard_negatives=1"], "batch.hard_negatives needs refresh.every above 0"),
        (["optimizer.precision=fp16"], "fp16 needs a GPU"),
        (["encoder.frozen=true"], "leaves nothing to train; set ngrams.buckets"),
        (["ngrams.frozen=true"], "ngrams.frozen requires encoder.frozen"),
        (["encoder.name=nowhere/none"], "encoder 'nowhere/none' cannot be loaded"),
        (["encoder.query_tokens=9999"], "query_tokens and encoder.label_tokens must lie in 1.."),
        (["encoder.pooling=first"], "encoder.pooling"),
        (["system.name=rea"], "system.name must be one of rae, "),
        (["system.tau=-1.0"], "system: tau: must be greater than 0"),
        (["system.taw=1.0"], "taw is unknown; known are tau, in_batch_instances"),
        (["ngrams.buckets=8", "ngrams.shortest=6"], "ngrams.longest: "),
        (["lora.rank=2", "lora.modules=['nothing']"], "its layers are dense, key, query, value"),
        (["system.name=unidec"], "needs the table [heads]"),
        (["system.name=unidec", "heads.encoder=64", "heads.classifier=8"], f"may be {DIMENSION}"),
        (["metadata.append=some"], "append"),
        (["guidance.oracle=nowhere"], "is missing: the run has not finished"),
        (["guidance.alpha=-1"], "alpha"),
        (["guidance.own_loss=0"], "own_loss = 0 needs an oracle"),
        (
            ["guidance.own_loss=0", "guidance.alpha=0", "guidance.beta=0"],
            "one of own_loss, alpha and beta must be above 0",
        ),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused_in_one_line(
    changes: Sequence[str],
    message: str,
    train: Train,
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read from env at import
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert train(*changes) == 2

    error = capsys.readouterr().err.splitlines()[-1]  # after the lines of progress
    assert error.startswith("error: ")
    assert message in error
