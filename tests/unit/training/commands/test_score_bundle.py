"""Weighted metrics of a bundle and of an encoder, if requested."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from service.command_line import run
from tests.support.tiny import export, training
from training.__main__ import app
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.evaluation import results
from training.evaluation.weighted_metrics import ALL_ALIKE, SHOWN_WEIGHTED


def weighted_test(dataset: Dataset, folder: Path) -> Path:
    """Write the data set with different weights for the labels of each test row."""
    test = dataset.test
    labels_of = test.labels_of.copy()
    labels_of.data[::2] = 5.0
    lf_xmc.write(replace(dataset, test=replace(test, labels_of=labels_of)), folder)
    return folder


def test_a_bundle_is_measured_with_weights_where_asked(
    tiny_bundle_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    data = weighted_test(export.tiny_dataset(), tmp_path / "data")
    lf_xmc.write(export.tiny_dataset(), tmp_path / "alike")

    def metrics(folder: Path, *options: str) -> tuple[dict[str, float], str]:
        places = ("--bundle", str(tiny_bundle_folder), "--data", str(folder))
        assert run(app, ["score", *places, "--json", str(figures), *options]) == 0
        return orjson.loads(figures.read_bytes())["rows"][0]["metrics"], capsys.readouterr().out

    plain, said = metrics(data)
    assert "weighted" not in said and not any("weighted" in name for name in plain)
    found, said = metrics(data, "--weighted")
    assert {name: found[name] for name in plain} == plain
    assert found["weighted R@100"] == pytest.approx(plain["R@100"])  # all positives are found
    assert found["weighted nDCG@5"] != pytest.approx(plain["nDCG@5"])
    assert all(name in said for name in SHOWN_WEIGHTED)
    assert ALL_ALIKE not in said
    alike, said = metrics(tmp_path / "alike", "--weighted")
    assert alike["weighted P@1"] == alike["P@1"]
    assert ALL_ALIKE in said


def test_an_encoder_is_scored_with_weights_where_asked(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = weighted_test(training.tiny_dataset(), tmp_path / "data")
    out = tmp_path / "scored"
    places = ["--encoder", str(model), "--out", str(out), "--data", str(data)]
    assert run(app, ["score", *places, "--weighted"]) == 0
    assert "weighted P@1 " in capsys.readouterr().out.splitlines()[-1]
    scored = results.read(out).results
    assert all(set(SHOWN_WEIGHTED) <= result.metrics.keys() for result in scored)
    assert scored[0].metrics["weighted P@1"] <= scored[0].metrics["P@1"]
