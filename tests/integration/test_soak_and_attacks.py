"""The commands of soak and attacks, shortly and on a tiny bundle."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.support import commands

run = partial(commands.run, seconds=240)


@pytest.mark.slow
def test_a_short_soak_loses_and_refuses_nothing(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    done = run("loadtests.soak", "--bundle", tiny_bundle_folder, "--out", tmp_path,
               "--minutes", "0.5")  # fmt: skip
    lost, answers, *_ = json.loads((tmp_path / "soak.json").read_bytes())["rows"]
    assert lost["met"], done.stdout
    assert answers["met"], done.stdout
    assert lost["figures"]["acknowledged"] > 100
    assert (tmp_path / "soak.png").stat().st_size > 10_000


def test_an_attack_is_measured_beside_a_normal_client(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    run("loadtests.attacks", "--bundle", tiny_bundle_folder, "--out", tmp_path,
        "--seconds", "1", "--only", "far versions", "--only", "blank lines")  # fmt: skip
    rows = json.loads((tmp_path / "attacks.json").read_bytes())["rows"]
    assert [row["what"].split(":")[0] for row in rows] == ["far versions"] * 4 + ["blank lines"] * 4
    assert all(row["figures"] for row in rows)


def test_an_unknown_attack_is_a_sentence(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    done = run("loadtests.attacks", "--bundle", tiny_bundle_folder, "--out", tmp_path,
               "--only", "storm")  # fmt: skip
    assert done.returncode == 2
    assert "no attack is named storm; there are: costly queries" in " ".join(done.stderr.split())
