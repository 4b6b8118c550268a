"""`export bundle` and `score` with `--cluster` write what one process writes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from export.__main__ import app as export
from export.encoder import export as encoders
from export.encoder.export import EncoderOptions, export_encoder
from tests.integration.cluster.conftest import SECONDS
from tests.support.commands import Refused, run, status_of
from tests.support.tiny.export import TinyReference, tiny_dataset
from training.__main__ import app as training
from training.datasets import lf_xmc


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[object]]:
    """`command(out, ...)` exports the tiny data set to the folder `out`."""
    monkeypatch.setattr(encoders, "trace", lambda encoder, target: encoder.trace_to(target))
    options = EncoderOptions(quantization="none", threads=1)
    quiet = Console(quiet=True)
    reference, target = TinyReference(tmp_path / "reference"), tmp_path / "encoder"
    export_encoder(reference, tiny_dataset(), target, options=options, console=quiet)
    lf_xmc.write(tiny_dataset(), tmp_path / "data")
    places = ("--encoder", target, "--data", tmp_path / "data")
    return lambda out, *more: ["bundle", *places, "--out", tmp_path / out, *more]


def parts_of(bundle: Path) -> dict[str, bytes]:
    """The files of the parts of a bundle."""
    return {
        str(path.relative_to(bundle)): path.read_bytes()
        for path in bundle.glob("parts/*/*")
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_parts_are_those_of_one_process(
    command: Callable[..., list[object]], tmp_path: Path
) -> None:
    assert status_of(export, *command("here", "--shards", "2")) == 0
    options = ("--shards", "2", "--cluster", "auto")
    ended = run("export", *command("there", *options), seconds=SECONDS)
    assert ended.returncode == 0, ended.stderr
    here, there = (parts_of(tmp_path / name) for name in ("here", "there"))
    assert {"parts/0-of-2/base.index", "parts/1-of-2/keys.npy"} <= here.keys()
    assert here == there
    assert "encode instances: " in ended.stderr
    assert not (tmp_path / ".there.encoding").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_figures_are_those_of_one_process(
    command: Callable[..., list[object]], tmp_path: Path
) -> None:
    assert status_of(export, *command("bundle", "--hold-out-test")) == 0
    score = ("score", "--bundle", tmp_path / "bundle", "--data", tmp_path / "data", "--json")
    assert status_of(training, *score, tmp_path / "here.json") == 0
    ended = run("training", *score, tmp_path / "there.json", "--cluster", "auto", seconds=SECONDS)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "there.json").read_bytes() == (tmp_path / "here.json").read_bytes()
    assert not (tmp_path / ".there.json.score").exists()


def test_figures_of_a_cluster_need_a_place_for_parts(refused: Refused) -> None:
    said = refused(training, *"score --bundle b --data d --cluster auto".split())
    assert said == "--cluster goes with --json, next to which finished parts are kept"


def test_a_cluster_that_does_not_answer_is_refused_before_anything_is_encoded(
    command: Callable[..., list[object]], refused: Refused, tmp_path: Path
) -> None:
    said = refused(export, *command("out", "--cluster", "127.0.0.1:1"))
    assert said == "no Ray head answers at 127.0.0.1:1: Connection refused"
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
