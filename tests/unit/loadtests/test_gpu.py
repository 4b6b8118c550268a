"""The parts of the GPU benchmark on a simulated GPU, and its refusal without a GPU."""

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import loadtests.gpu.__main__ as command
from loadtests.gpu import searching
from loadtests.gpu.__main__ import Served, encoding_rows, tolerance_row
from loadtests.gpu.searching import measure_search
from loadtests.saturation import Level
from loadtests.traffic import Summary
from service.core.bundle import manifest
from service.core.encoding.encoder import OnnxEncoder
from tests.support.commands import status_of
from tests.support.device.scan_device import HostScanDevice, use_stand_in


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in(monkeypatch)
    monkeypatch.setattr(command, "REPETITIONS", 1)
    monkeypatch.setattr(searching, "REPETITIONS", 1)


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="it has CUDA"
)
def test_without_a_gpu_it_ends_with_a_sentence_and_status_2(
    tiny_bundle_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert status_of(command.app, "--bundle", tiny_bundle_folder, "--out", out) == 2
    said = capsys.readouterr().err
    assert said.startswith('error: device = "cuda" needs onnxruntime with its CUDA')
    assert said.count("\n") == 1
    assert not out.exists()


@pytest.mark.usefixtures("stand_in")
def test_every_shape_is_timed(tiny_bundle_folder: Path) -> None:
    facts = manifest.read(tiny_bundle_folder).encoder
    measured = encoding_rows(
        OnnxEncoder(tiny_bundle_folder, facts, device="cuda"),
        OnnxEncoder(tiny_bundle_folder, facts),
        tokens=facts.max_tokens,
    )
    rows = list(measured)
    assert [row.what for row in rows] == [
        f"encode texts of {length} tokens, ms a batch of so many" for length in (8, 16, 32)
    ]
    assert list(rows[0].figures["batch_ms"]) == ["1", "2", "4", "8", "16", "32", "64"]


@pytest.mark.usefixtures("stand_in")
def test_a_search_has_recall_1_but_for_ties_in_fp16() -> None:
    device = HostScanDevice(largest_count=2048)
    measured = measure_search(device, rows=3_000, dimension=32, depth=20, seed=0)
    assert measured.recall == 1.0
    assert 0 < measured.difference < 1e-3
    assert measured.row().met
    assert set(measured.milliseconds) == set(measured.with_tombstones) == {"1", "8", "64"}


def test_a_search_that_loses_rows_has_less_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "REPETITIONS", 1)
    whole = searching.DeviceSegment.search

    def halved(segment: Any, queries: Any, *, count: int, **how: Any) -> Any:
        similarities, rows = whole(segment, queries, count=count, **how)
        rows[:, count // 2 :] = -1
        return similarities, rows

    monkeypatch.setattr(searching.DeviceSegment, "search", halved)
    measured = measure_search(HostScanDevice(), rows=500, dimension=16, depth=10, seed=0)
    assert measured.recall == 0.5
    assert measured.row().met is False


def test_the_tolerance_is_taken_rank_by_rank() -> None:
    row = tolerance_row("cuda", [[0.5, 0.2], [0.1]], [[0.5004, 0.2], [0.1]])
    assert row.met and row.figures["largest"] == pytest.approx(4e-4)
    assert tolerance_row("cuda", [[0.5]], [[0.502]]).met is False


def level(connections: int, *, answered: int) -> Level:
    return Level(
        connections=connections, queries=1, seconds=1.0, answered=answered, failed=0, cpu=0.2
    )


@pytest.mark.usefixtures("stand_in")
def test_the_report_holds_every_part(
    tiny_bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of the servers are invented."""

    def measured(bundle: Path, device: str, *_: Any, compared: list[str]) -> Any:
        figures = Served(
            device=device,
            ready_seconds=1.0,
            latency=Summary.of([0.001, 0.002]),
            failures={},
            levels=[level(8, answered=100), level(64, answered=300)],
        )
        return figures, command.exact_scores(bundle, compared)

    monkeypatch.setattr(command, "measure_service", measured)
    out = tmp_path / "out"
    arguments = ("--bundle", tiny_bundle_folder, "--out", out, "--rows", 200, 90)
    assert status_of(command.app, *arguments, "--compared", 5) == 0
    rows = json.loads((out / "gpu.json").read_text())["rows"]
    assert [row["what"].split(",")[0] for row in rows[3:]] == [
        "search 90 rows in fp16", "search 200 rows in fp16", "the service", "the service",
        "answers", "answers",
    ]  # fmt: skip
    assert [row["met"] for row in rows[-2:]] == [True, True]
    assert (out / "gpu.md").read_text().startswith("# Serving on a GPU")


def test_a_served_device_is_measured_from_start_to_answers(tiny_bundle_folder: Path) -> None:
    load = command.Load(rate=20, label_rate=0, seconds=0.5, seed=0)
    compared = ["tent", "boots for the trail"]
    queries = iter(["tent", "lamp"] * 100_000)
    figures, scores = command.measure_service(
        tiny_bundle_folder, "cpu", queries, load, compared=compared
    )
    assert figures.failures == {}
    assert [at.connections for at in figures.levels] == [8, 32, 64]
    assert all(at.answered and not at.failed for at in figures.levels)
    assert tolerance_row("cpu", scores, command.exact_scores(tiny_bundle_folder, compared)).met
