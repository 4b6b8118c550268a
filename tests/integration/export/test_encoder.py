"""On the command line: checkpoint -> exported encoder -> bundle, the last step without torch."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import orjson
import pytest

from export.__main__ import app as export
from service.core.bundle.bundle import open_bundle
from tests.support.commands import Refused, run, status_of
from tests.support.tiny.bundles import LABELS
from training.__main__ import app as training

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")

WITHOUT_TORCH = (
    "import sys;"
    "sys.modules.update(torch=None, transformers=None, sentence_transformers=None, onnx=None);"
    "from export.__main__ import app;"
    "from service.command_line import run;"
    "sys.exit(run(app))"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    lines = [f"seek {text}\t{text}\n" for text in LABELS.values()]
    lines += [f"buy {text} now\t{text}\n" for text in LABELS.values()]
    (folder / "clicks.tsv").write_text("query\tlabel\n" + "".join(lines))
    columns = ("--query", "query", "--label", "label")
    source = ("--input", folder / "clicks.tsv", *columns)
    assert status_of(training, "data", "pairs", *source, "--out", folder / "clicks") == 0
    return folder / "clicks"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny.training import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def encoder(checkpoint: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("encoder") / "encoder"
    places = ("--encoder", checkpoint, "--data", data, "--out", target)
    ended = run("export", "encoder", *places, "--quantize", "none", "--name", "tiny")
    assert ended.returncode == 0, ended.stderr
    assert "MB; cosine to torch 1.0000" in ended.stdout
    return target


def test_a_bundle_needs_no_torch(encoder: Path, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    options = ("--encoder", encoder, "--data", data, "--out", target, "--depth", "50")
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "bundle", *map(str, options)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    facts = open_bundle(target).manifest
    assert (facts.encoder.name, facts.encoder.quantization) == ("tiny", "none")
    assert (facts.predictor.depth, facts.predictor.memorization) == (50, 0.5)
    described = orjson.loads((encoder / "encoder.json").read_bytes())
    assert facts.encoder.fingerprint == described["encoder"]["fingerprint"]
    assert {path.name for path in tmp_path.iterdir()} == {"bundle"}


@pytest.mark.slow
def test_the_bundle_of_a_checkpoint_is_the_same(
    checkpoint: Path, encoder: Path, data: Path, tmp_path: Path
) -> None:
    options = ("--data", data, "--quantize", "none")
    places = ("--encoder", checkpoint, "--out", tmp_path / "direct")
    assert run("export", "bundle", *places, *options).returncode == 0
    described = orjson.loads((encoder / "encoder.json").read_bytes())
    facts = open_bundle(tmp_path / "direct").manifest
    assert facts.encoder.fingerprint == described["encoder"]["fingerprint"]


def test_what_stands_already_cannot_be_changed(
    refused: Refused, encoder: Path, data: Path, tmp_path: Path
) -> None:
    places = ("--encoder", encoder, "--data", data, "--out", tmp_path / "out")
    for option in (("--quantize", "int8"), ("--max-tokens", "8"), ("--query-prompt", "q: ")):
        said = refused(export, "bundle", *places, *option)
        assert said.startswith(f"{option[0].removeprefix('--')}: the encoder is exported already")
    said = refused(export, "encoder", *places)
    assert "it is an exported encoder" in said and "name the checkpoint" in said
    assert not (tmp_path / "out").exists()


def test_a_taken_folder_and_an_unknown_encoder_are_named(
    refused: Refused, encoder: Path, data: Path, tmp_path: Path
) -> None:
    places = ("--data", data, "--out")
    assert "exists already" in refused(export, "encoder", "--encoder", "x", *places, encoder)
    said = refused(export, "encoder", "--encoder", "package:no-such", *places, tmp_path / "out")
    assert "no-such" in said


@pytest.mark.slow
def test_label_keys_of_another_data_set_are_refused(
    refused: Refused, checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(checkpoint, tmp_path / "own"))
    np.save(own / "label_keys.npy", np.ones((len(LABELS) - 1, 32), np.float16))
    places = ("--encoder", own, "--data", data, "--out", tmp_path / "encoder")
    assert f"the data set has {len(LABELS)} labels" in refused(export, "encoder", *places)
    assert not (tmp_path / "encoder").exists()
