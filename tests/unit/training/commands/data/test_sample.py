"""The command `python -m training data sample`."""

import json
from pathlib import Path

import pytest

from service.command_line import run
from training.__main__ import app
from training.datasets import lf_xmc
from training.datasets.samples import SAMPLES


def test_subdivisions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "databases").mkdir()
    countries = {"3166-1": [{"alpha_2": "AD", "name": "Andorra"}]}
    (tmp_path / "databases/iso3166-1.json").write_text(json.dumps(countries))
    parts = [{"code": f"AD-{n}", "name": f"place {n}", "type": "Parish"} for n in range(30)]
    (tmp_path / "databases/iso3166-2.json").write_text(json.dumps({"3166-2": parts}))
    out = tmp_path / "out"
    arguments = ["data", "sample", "subdivisions", "--source", str(tmp_path), "--out", str(out)]
    assert run(app, arguments) == 0
    dataset = lf_xmc.read(out)
    counts = f"{len(dataset.train)} train and {len(dataset.test)} test rows, 2 labels"
    assert capsys.readouterr().out == f"{out}: {counts}\n"
    assert run(app, arguments) != 0  # the folder exists


def test_the_help_names_every_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["data", "sample", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in SAMPLES)
