"""`average`: the mean of two runs' weights is a run like any other."""

import shutil
from pathlib import Path

import orjson
import pytest
import torch
from safetensors.torch import load_file

from service.command_line import run
from tests.support.tiny.training import train_tiny
from training.__main__ import app
from training.checkpoints.choices import read_choices
from training.checkpoints.label_keys import read_label_keys
from training.combining.weight_average import averaged
from training.models.torch_encoder import load_encoder

HEADS = ("heads.encoder=16", "heads.classifier=12")


def average(folder: Path, out: Path, *names: str, way: str = "greedy") -> int:
    places = ["--run", *(str(folder / name) for name in names), "--data", str(folder / "data")]
    return run(app, ["average", *places, "--out", str(out), "--way", way])


@pytest.fixture(scope="module")
def more(two_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two further runs of RAE-XMC and two of UniDEC, one of these with other dimensions."""
    folder = tmp_path_factory.mktemp("more")
    for name in ("rae", "supcon", "data"):
        shutil.copytree(two_runs / name, folder / name)
    shutil.copy(two_runs / "ngrams.toml", folder)
    frozen = "encoder.frozen=true"
    for name, *changes in (
        ("faster", "optimizer.learning_rate=0.01"),
        ("unidec", "system.name=unidec", frozen, *HEADS),
        ("unidec-too", "system.name=unidec", frozen, *HEADS, "optimizer.steps=4"),
        ("narrow", "system.name=unidec", frozen, "heads.encoder=8", "heads.classifier=12"),
    ):
        assert train_tiny(folder, name, *changes, recipe="ngrams") == 0
    return folder


def test_the_mean_is_taken_tensor_by_tensor() -> None:
    one = {"w": torch.tensor([1.0, 2.0]), "ids": torch.tensor([3, 4])}
    other = {"w": torch.tensor([3.0, 6.0]), "ids": torch.tensor([3, 4])}
    mean = averaged([one, other])
    assert mean["w"].tolist() == [2.0, 4.0] and mean["ids"].tolist() == [3, 4]
    assert averaged([one])["w"].tolist() == [1.0, 2.0]


def test_a_uniform_average_holds_the_mean_of_all_weights(more: Path, tmp_path: Path) -> None:
    assert average(more, tmp_path / "out", "rae", "faster", way="uniform") == 0

    states = [
        load_encoder(str(folder / "best")).model.state_dict()
        for folder in (more / "rae", more / "faster", tmp_path / "out")
    ]
    assert any("table" in name for name in states[0]), "n-grams are averaged, too"
    for name, value in states[2].items():
        expected = (states[0][name].float() + states[1][name].float()) / 2
        assert torch.allclose(value.float(), expected, atol=1e-6), name
    facts = orjson.loads((tmp_path / "out/run.json").read_bytes())
    assert facts["average"]["kept"] == ["rae", "faster"]
    assert facts["recipe"] == "average of rae, faster"
    assert set(facts["average"]["alone"]) == {"rae", "faster"}
    assert read_choices(tmp_path / "out/best") is not None
    places = ["--run", str(tmp_path / "out"), "--data", str(more / "data")]
    assert run(app, ["score", *places]) == 0


def test_a_greedy_average_is_no_worse_than_the_best_run(more: Path, tmp_path: Path) -> None:
    """Runs of two losses over one encoder may be averaged."""
    assert average(more, tmp_path / "out", "rae", "faster", "supcon") == 0
    made = orjson.loads((tmp_path / "out/run.json").read_bytes())["average"]
    assert made["score"] >= max(made["alone"].values())
    assert max(made["alone"], key=made["alone"].__getitem__) == made["kept"][0]


def test_classifiers_and_heads_are_averaged_too(more: Path, tmp_path: Path) -> None:
    assert average(more, tmp_path / "out", "unidec", "unidec-too", way="uniform") == 0

    tables = [
        load_file(folder / "best/own.safetensors")["weight"]
        for folder in (more / "unidec", more / "unidec-too", tmp_path / "out")
    ]
    assert not torch.equal(tables[0], tables[1])
    assert torch.allclose(tables[2], (tables[0] + tables[1]) / 2, atol=1e-6)
    lines = (tmp_path / "out/metrics.jsonl").read_text()
    assert '"shared"' in lines, "the shares of the heads are chosen anew"
    keys = read_label_keys(tmp_path / "out/best", labels=16)
    assert keys is None or keys.shape == (16, 28)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["rae", "unidec"], "are none and []; `mix` mixes the scores of any runs"),
        (["unidec", "narrow"], "the shapes of 3.to_encoder.bias are [16] and [8]"),
        (["rae"], "give 2 to 10 runs, not 1"),
    ],
)
def test_runs_that_do_not_fit_are_one_line(
    names: list[str], message: str, more: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert average(more, tmp_path / "out", *names) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out/best").exists()


def test_a_folder_with_a_run_is_left_alone(more: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert average(more, more / "rae", "rae", "faster") == 2
    assert "already holds a run" in " ".join(capsys.readouterr().err.split())
