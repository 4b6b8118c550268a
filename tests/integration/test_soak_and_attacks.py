"""Short runs of the commands `soak` and `attacks` on a tiny bundle."""

import json
from functools import partial
from pathlib import Path

import pytest

from loadtests.attacks.__main__ import app
from tests.support import commands

run = partial(commands.run, seconds=240)


@pytest.mark.slow
def test_a_short_soak_loses_and_refuses_nothing(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    done = run("loadtests.soak", "--bundle", tiny_bundle_folder, "--out", tmp_path,
               "--minutes", "0.5")  # fmt: skip
    lost, answers, memory, *_ = json.loads((tmp_path / "soak.json").read_bytes())["rows"]
    assert lost["met"], done.stdout
    assert answers["met"], done.stdout
    assert lost["figures"]["acknowledged"] > 100
    assert len(memory["figures"]["samples"]) > 10


def test_an_attack_is_measured_beside_a_normal_client(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    run("loadtests.attacks", "--bundle", tiny_bundle_folder, "--out", tmp_path,
        "--seconds", "1", "--only", "blank lines")  # fmt: skip
    rows = json.loads((tmp_path / "attacks.json").read_bytes())["rows"]
    assert [row["what"].split(":")[0] for row in rows] == ["blank lines"] * 4
    assert all(row["figures"] for row in rows)


def test_an_unknown_attack_is_a_sentence(
    tiny_bundle_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--bundle", tiny_bundle_folder, "--out", tmp_path, "--only", "storm")
    said = commands.one_line(commands.status_of(app, *options), capsys.readouterr().err)
    assert "no attack is named storm; there are: costly queries" in said
