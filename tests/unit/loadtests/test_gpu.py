"""The GPU benchmark on a simulated GPU, and its refusal without a GPU."""

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import loadtests.gpu as command
from loadtests.bare_predictor import BarePredictor
from loadtests.gpu import tolerance_row
from loadtests.report import Row
from loadtests.traffic import Load
from service.child_server import ServerFailed
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


@pytest.mark.usefixtures("stand_in")
def test_the_rows_before_a_failure_are_written(
    tiny_bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(bundle: Path, device: str, *_: Any, compared: list[str]) -> Any:
        if device == "cpu":
            raise ServerFailed("the server ended with status 2")
        return Row(what="served", measured=""), command.exact_scores(bundle, compared)

    monkeypatch.setattr(command, "measure_service", failing)
    arguments = ("--bundle", tiny_bundle_folder, "--out", tmp_path, "--compared", 5)
    assert status_of(command.Gpu.app(), *arguments) == 2
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row["what"].split()[0] for row in rows] == ["served", "answers,"]


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
def test_the_report_holds_every_part(
    tiny_bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of the servers are invented."""

    def measured(bundle: Path, device: str, *_: Any, compared: list[str]) -> Any:
        row = Row(what=f"the service, device {device}", goal="-", measured="")
        return row, command.exact_scores(bundle, compared)

    monkeypatch.setattr(command, "measure_service", measured)
    arguments = ("--bundle", tiny_bundle_folder, "--out", tmp_path, "--compared", 5)
    assert status_of(command.Gpu.app(), *arguments) == 0
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row["what"].split(",")[0] for row in rows] == [
        *("the service", "answers"),
        *("the service", "answers"),
    ]
    assert rows[1]["met"] and rows[3]["met"]
    assert (tmp_path / "gpu.md").read_text().startswith("# Serving on a GPU")


def test_exact_scores_use_the_options_of_a_service(tiny_bundle_folder: Path) -> None:
    options = BarePredictor.open(tiny_bundle_folder).options
    assert options == complete_options(manifest.read(tiny_bundle_folder))


def test_a_served_device_is_measured_from_start_to_answers(tiny_bundle_folder: Path) -> None:
    load = Load(rate=20, seconds=0.5)
    compared = ["tent", "boots for the trail"]
    queries = iter(["tent", "lamp"] * 100_000)
    row, scores = command.measure_service(
        tiny_bundle_folder, "cpu", queries, load, compared=compared
    )
    assert row.figures["failures"] == {}
    levels = row.figures["levels"]
    assert [level.connections for level in levels] == [8, 32, 64]
    assert all(level.answered and not level.failed for level in levels)
    assert tolerance_row("cpu", scores, command.exact_scores(tiny_bundle_folder, compared)).met
