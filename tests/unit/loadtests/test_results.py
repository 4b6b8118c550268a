"""A benchmark's report and the goals that its rows are held against."""

import json
from dataclasses import replace
from pathlib import Path

from loadtests.clients.open_loop import Outcome
from loadtests.measure.saturation import Level
from loadtests.measure.writing import WhileWriting
from loadtests.results.goals import predictions_row, saturation_row, while_writing_row
from loadtests.results.result_table import Report, Row


def test_a_report_is_json_and_a_table(tmp_path: Path) -> None:
    rows = [
        Row(what="speed", goal="<= 1", measured="2", met=False, figures={"n": 2}),
        Row(what="size", goal="-", measured="3"),
    ]
    Report(title="Title", settings={"seed": 0}, environment={"cores": 2}, rows=rows).write(
        tmp_path / "new", "report"
    )
    assert json.loads((tmp_path / "new/report.json").read_text())["rows"][0]["figures"] == {"n": 2}
    text = (tmp_path / "new/report.md").read_text()
    assert "| speed | <= 1 | 2 | NOT MET |" in text
    assert "| size | - | 3 | - |" in text


def test_failed_requests_miss_the_goal() -> None:
    fast = Outcome(latencies=[0.001] * 100, late=[0.0] * 100, failures={})
    assert predictions_row("fast", fast).met
    failed = Outcome(latencies=[0.001] * 100, late=[0.0] * 100, failures={"503": 1})
    assert not predictions_row("failed", failed).met
    slow = Outcome(latencies=[0.001] * 98 + [0.020] * 2, late=[0.0] * 100, failures={})
    assert not predictions_row("slow tail", slow).met


def test_saturation_is_the_best_number_of_connections() -> None:
    levels = [
        Level(connections=2, queries=4, seconds=2, answered=1000, failed=0, processor=8),
        Level(connections=4, queries=4, seconds=2, answered=600, failed=0, processor=2),
    ]
    row = saturation_row(levels)
    assert row.met
    assert row.measured.startswith("500 requests/s on 2 connections; 2.00 ms")
    assert saturation_row(levels, goal=None).met is None
    assert not saturation_row([replace(levels[0], failed=1)]).met


def test_rounds_with_labels_are_compared_with_quiet_ones() -> None:
    quiet = {"predict": Outcome(latencies=[0.010] * 10, late=[0.0], failures={})}
    labels = Outcome(latencies=[0.005] * 10, late=[0.0], failures={"503": 2})
    measured = WhileWriting()
    measured.add(quiet)
    measured.add(
        {
            "predict": Outcome(latencies=[0.012] * 10, late=[0.0], failures={"503": 1}),
            "labels": labels,
        }
    )
    assert (measured.quiet, measured.writing) == ([0.010] * 10, [0.012] * 10)
    assert measured.labels == [0.005] * 10
    assert measured.failures == {"503": 3}
    row = while_writing_row("rounds", measured)
    assert round(row.figures["p99_ratio"], 6) == 1.2
    assert not row.met  # three requests failed
