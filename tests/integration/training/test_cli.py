"""`keymatch export bundle`: mistakes are one clear line, and votes have the encoder's relevance."""

import shutil
from pathlib import Path

import orjson
import pytest

from export.__main__ import app as export
from service.core.bundle.bundle import open_bundle
from service.core.files.arrays import is_constant
from tests.support.commands import Refused, status_of
from training.__main__ import app as training

DEMO_ENCODER = Path(__file__).parents[3] / "deploy/demo/encoder"
KINDS = "red green blue small large cheap white black".split()
WEIGHTS = {"camping": 3, "shelter": 1}


def test_export_names_what_is_missing_or_unknown(refused: Refused, tmp_path: Path) -> None:
    places = ("--encoder", "nowhere", "--data", tmp_path / "data", "--out", tmp_path / "out")
    assert "--data" in refused(export, "bundle", "--encoder", "nowhere")
    assert "--encodre" in refused(export, "bundle", *places, "--encodre", "x")
    assert "int4" in refused(export, "bundle", *places, "--quantize", "int4")
    assert "annoy" in refused(export, "bundle", *places, "--library", "annoy")
    unknown = ("--encoder", "package:no-such-package", *places[2:])
    assert "no-such-package" in refused(export, "bundle", *unknown)
    assert refused(export, "bundle", *places, "--m", "1") == "m must lie in 4..256"
    known = ("--encoder", DEMO_ENCODER, *places[2:])
    assert refused(export, "bundle", *known) == f"{tmp_path / 'data'}: is not a folder"
    assert not (tmp_path / "out").exists()


def test_a_bundle_votes_with_the_relevance_of_its_encoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "weighted.csv"
    rows = [f"{kind} tent,{label},{weight}" for kind in KINDS for label, weight in WEIGHTS.items()]
    table.write_text("\n".join(["query,label,clicks", *rows]) + "\n")
    columns = ("--query", "query", "--label", "label", "--weight", "clicks")
    data, encoder = tmp_path / "data", tmp_path / "encoder"
    assert status_of(training, "data", "pairs", "--input", table, *columns, "--out", data) == 0
    shutil.copytree(DEMO_ENCODER, encoder)

    def votes(name: str, *options: str) -> list[float] | None:
        capsys.readouterr()
        places = ("--encoder", encoder, "--data", data, "--out", tmp_path / name)
        assert status_of(export, "bundle", *places, *options) == 0
        weights = open_bundle(tmp_path / name).vote_weights
        return None if is_constant(weights) else weights[:2].tolist()

    assert votes("plain") == [1.5, 0.5]
    assert "relevance" not in capsys.readouterr().out
    assert votes("said", "--relevance", "binary") is None
    assert "votes with relevance binary, as --relevance says" in capsys.readouterr().out

    description = orjson.loads((encoder / "encoder.json").read_bytes())
    description["predictor"]["relevance"] = "log"
    (encoder / "encoder.json").write_bytes(orjson.dumps(description))
    assert votes("chosen") == [pytest.approx(4 / 3), pytest.approx(2 / 3)]
    assert "relevance log, which `fit` chose" in capsys.readouterr().out
    assert votes("overruled", "--relevance", "given") == [1.5, 0.5]
    assert "relevance given, as --relevance says, in place of log" in capsys.readouterr().out

    description["predictor"]["relevance"] = "loud"
    (encoder / "encoder.json").write_bytes(orjson.dumps(description))
    places = ("--encoder", encoder, "--data", data, "--out", tmp_path / "damaged")
    assert status_of(export, "bundle", *places) == 2
    assert "encoder.json: predictor.relevance" in capsys.readouterr().err
