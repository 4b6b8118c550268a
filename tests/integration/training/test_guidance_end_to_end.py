"""MOGIC: an oracle reads metadata and guides a disciple without; it is not exported itself."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file

from export.__main__ import app as export
from tests.support.commands import status_of
from tests.support.tiny.training import (
    losses,
    tiny_dataset,
    train_tiny,
    with_colour_metadata,
    write_recipe,
    write_tiny_checkpoint,
)
from training.__main__ import app as training
from training.datasets import lf_xmc

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An oracle, a disciple that it guided, and the same system by itself."""
    folder = tmp_path_factory.mktemp("mogic")
    lf_xmc.write(with_colour_metadata(tiny_dataset()), folder / "data")
    model = write_tiny_checkpoint(folder, dropout=0.0)
    write_recipe(folder, model=model, system="ngame")
    for name, settings in (
        ("oracle", ["metadata.append=both"]),
        ("alone", []),
        ("guided", [f"guidance.oracle={folder / 'oracle'}"]),
    ):
        assert train_tiny(folder, name, *settings) == 0
    return folder


def test_the_oracle_guides_the_disciple(folder: Path) -> None:
    alone, guided = (losses(folder / name) for name in ("alone", "guided"))
    assert guided[0] > alone[0] + 0.01, "two losses are added to the system's own"
    assert guided[-1] < guided[0]

    weights = [load_file(folder / name / "best" / "model.safetensors") for name in
               ("alone", "guided")]  # fmt: skip
    assert any(not np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("name", ["oracle", "guided"])
def test_both_are_scored_on_the_texts_that_they_read(folder: Path, name: str) -> None:
    places = ("--run", folder / name, "--data", folder / "data")
    assert status_of(training, "score", *places) == 0
    examples = orjson.loads((folder / name / "examples.json").read_bytes())
    queries = [example["query"] for example in examples["queries"]]
    assert all((" [SEP] is " in query) == (name == "oracle") for query in queries)


def test_an_oracle_is_not_exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = ("--encoder", folder / "oracle" / "best", "--data", folder / "data")
    assert status_of(export, "bundle", *source, "--out", folder / "bundle") == 2
    assert "is an oracle" in capsys.readouterr().err
    assert not (folder / "bundle").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["guidance.oracle=nowhere"], "is missing: the run has not finished"),
        (["guidance.alpha=-1"], "alpha"),
        (["metadata.append=some"], "append"),
    ],
)
def test_wrong_settings_are_said(
    folder: Path, settings: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(folder, "wrong", *settings) == 2
    assert message in capsys.readouterr().err


def test_an_oracle_loses_by_wrong_metadata_and_a_disciple_does_not_read_any(folder: Path) -> None:
    places = ("--data", folder / "data", "--out", folder / "robustness")
    runs = ("--runs", folder / "oracle", folder / "guided")
    assert status_of(training, "robustness", *runs, *places) == 0

    rows = orjson.loads((folder / "robustness" / "robustness.json").read_bytes())
    of_oracle = {(row["metadata"], row["share"]): row for row in rows if row["run"] == "oracle"}
    assert len(of_oracle) == 1 + 2 + 6 + 8
    assert {row["metadata"] for row in rows if row["run"] == "guided"} == {"not read"}
    assert of_oracle["replaced", 0.6]["P@1"] != of_oracle["true", 0.0]["P@1"]
    assert (folder / "robustness" / "robustness.png").read_bytes().startswith(b"\x89PNG")


def test_data_without_metadata_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lf_xmc.write(tiny_dataset(), folder / "no-metadata")
    places = ("--data", folder / "no-metadata", "--out", folder / "of-none")
    assert status_of(training, "robustness", "--runs", folder / "oracle", *places) == 2
    assert "changes metadata items, and data set colours has none" in capsys.readouterr().err
