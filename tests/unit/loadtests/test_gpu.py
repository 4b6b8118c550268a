"""The GPU benchmark on a simulated GPU, and its refusal without a GPU."""

import json
from pathlib import Path

import onnxruntime
import pytest

import loadtests.gpu as command
from loadtests.bare_predictor import BarePredictor
from loadtests.gpu import tolerance_row
from service.core.bundle import manifest
from service.core.options import complete_options
from tests.support.commands import status_of
from tests.support.device.scan_device import use_stand_in


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in(monkeypatch)


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="it has CUDA"
)
def test_without_a_gpu_it_ends_with_a_sentence_and_status_2(
    tiny_bundle_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert status_of(command.Gpu.app(), "--bundle", tiny_bundle_folder, "--out", out) == 2
    said = capsys.readouterr().err
    assert said.startswith('error: device = "cuda" needs onnxruntime with its CUDA')
    assert said.count("\n") == 1
    assert not out.exists()


def test_the_tolerance_is_taken_rank_by_rank() -> None:
    row = tolerance_row("cuda", [[0.5, 0.2], [0.1]], [[0.5004, 0.2], [0.1]])
    assert row.met and row.figures["largest"] == pytest.approx(4e-4)
    assert row.figures["mean"] == pytest.approx(4e-4 / 3)
    assert tolerance_row("cuda", [[0.5]], [[0.502]]).met is False
    assert tolerance_row("cuda", [], []).met


def test_the_share_of_queries_within_the_tolerance_is_shown() -> None:
    exact = [[0.5]] * 99
    row = tolerance_row("cuda", [*exact[1:], [0.502], [0.502]], [*exact, [0.5]])
    assert (row.met, row.figures["within"]) == (False, pytest.approx(0.98))


@pytest.mark.usefixtures("stand_in")
def test_rows_are_written_until_a_server_fails(
    tiny_bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first device is replaced by the CPU, and there is no second one."""
    monkeypatch.setattr(command, "DEVICES", ("cpu", "none"))
    arguments = ("--bundle", tiny_bundle_folder, "--out", tmp_path, "--compared-queries", 5)
    assert status_of(command.Gpu.app(), *arguments) == 2
    ready, answers = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert ready["what"] == "start to ready, device cpu"
    assert answers["met"], answers


def test_exact_scores_use_the_options_of_a_service(tiny_bundle_folder: Path) -> None:
    options = BarePredictor.open(tiny_bundle_folder).options
    assert options == complete_options(manifest.read(tiny_bundle_folder))
