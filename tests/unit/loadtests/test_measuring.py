"""Code shared by all load tests: queries, arrivals, summaries, recall, goals and the report."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from loadtests.bare_predictor import measure_recall
from loadtests.latency import bytes_row
from loadtests.loops import Outcome, poisson_starts
from loadtests.queries import distinct, read_queries, zipf
from loadtests.report import Report, Row
from loadtests.resources import cpu_seconds, process_tree
from loadtests.traffic import Level, Summary, latency_row, saturation_row
from loadtests.writes import while_writing_row
from service.core.bundle.bundle import Bundle
from service.core.errors import InvalidInput
from service.core.index.choose_ef import recall_per_query
from service.core.memory.knowledge_memory import KnowledgeMemory


def test_queries_come_from_the_bundle_or_a_file(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    assert {"trail footwear", "camping tent"} <= set(read_queries(tiny_bundle_folder))
    lines, titles = tmp_path / "queries.txt", tmp_path / "queries.json"
    lines.write_text("one\ntwo\n\none\n")
    titles.write_text('{"title": "one", "uid": "1"}\n{"title": "two"}\n')
    assert read_queries(tmp_path, lines) == read_queries(tmp_path, titles) == ["one", "two"]
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InvalidInput, match="holds no query"):
        read_queries(tmp_path, tmp_path / "empty.txt")


def test_distinct_queries_repeat_only_after_all_were_drawn() -> None:
    texts = [str(number) for number in range(50)]
    twice = list(islice(distinct(texts, seed=3), 100))
    assert sorted(twice[:50]) == sorted(twice[50:]) == sorted(texts)


def test_zipf_draws_the_second_rank_half_as_often_as_the_first() -> None:
    texts = [str(number) for number in range(100)]
    drawn = list(islice(zipf(texts, seed=3), 50_000))
    assert drawn == list(islice(zipf(texts, seed=3), 50_000))
    _, counts = np.unique(drawn, return_counts=True)
    ranked = np.sort(counts)[::-1]
    harmonic = np.sum(1 / np.arange(1, 101))
    assert ranked[0] / len(drawn) == pytest.approx(1 / harmonic, rel=0.05)
    assert ranked[0] / ranked[1] == pytest.approx(2, rel=0.1)


def test_arrivals_are_poisson() -> None:
    starts = poisson_starts(rate=100, seconds=200, seed=1)
    gaps = np.diff(starts)
    assert len(starts) == 20_000
    assert np.mean(gaps) == pytest.approx(0.01, rel=0.05)
    assert np.std(gaps) == pytest.approx(0.01, rel=0.05)
    assert np.array_equal(poisson_starts(rate=100, seconds=2, seed=1), starts[:200])


def test_a_summary_is_in_milliseconds() -> None:
    summary = Summary.of([number / 1000 for number in range(1, 102)])
    figures = (summary.count, summary.p50, summary.p99, summary.maximum)
    assert figures == pytest.approx((101, 51, 100, 101))
    nothing = Summary.of([])
    assert str(nothing) == "no answer"
    assert not nothing.p99 <= 1e9  # which meets no goal


def test_recall_counts_retrieved_rows_and_no_row_twice(trigram_bundle: Bundle) -> None:
    view = KnowledgeMemory(trigram_bundle).view
    queries = np.asarray(trigram_bundle.keys[:3], np.float32)
    assert measure_recall(view, queries, depth=4).mean == 1.0
    similarities, rows = view.retrieve(queries, depth=4, exact=True)
    worse = rows.copy()
    worse[0, 1:] = worse[0, 0]  # the same row four times
    worse[1, 2:] = -1
    recalls = recall_per_query(
        queries=queries, retrieved=worse, exact=(similarities, rows), vectors_of=view.vectors
    )
    assert recalls.tolist() == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("outcome", "met"),
    [
        (Outcome(latencies=[0.001] * 100), True),
        (Outcome(latencies=[0.001] * 100, failures={"503": 1}), False),
        (Outcome(latencies=[0.001] * 98 + [0.020] * 2), False),
        (Outcome(), False),
    ],
    ids=["fast", "failed", "slow tail", "no answer"],
)
def test_a_slow_or_failed_request_misses_the_goal(outcome: Outcome, met: bool) -> None:
    row = latency_row("what", outcome, p50=4, p99=10)
    assert (row.goal, row.met) == ("p50 <= 4 ms, p99 <= 10 ms", met)
    assert latency_row("what", outcome).met is None


def test_saturation_is_the_best_number_of_connections() -> None:
    levels = [
        Level(connections=2, queries=4, seconds=2, answered=1000, failed=0, cpu=8),
        Level(connections=4, queries=4, seconds=2, answered=600, failed=0, cpu=2),
    ]
    row = saturation_row(levels)
    assert row.met
    assert row.measured.startswith("500 requests/s on 2 connections; 2.00 ms")
    assert saturation_row(levels, goal=None).met is None
    assert not saturation_row([replace(levels[0], failed=1)]).met


def test_rounds_with_labels_are_compared_with_quiet_ones() -> None:
    predictions = Outcome(latencies=[0.012] * 10, failures={"503": 1})
    labels = Outcome(latencies=[0.005] * 10, failures={"503": 2})
    quiet = {"predict": Outcome(latencies=[0.010] * 10)}
    rounds = [quiet, {"predict": predictions, "labels": labels}]
    row = while_writing_row("rounds", rounds, ratio=1.5)
    assert row.figures["failures"] == {"503": 3}
    assert round(row.figures["labels"].p50, 6) == 5.0
    assert round(row.figures["p99_ratio"], 6) == 1.2
    assert not row.met  # because three requests failed


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


SPIN = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\n"
WORK = {
    "an ended thread": f"""
import threading
thread = threading.Thread(target=exec, args=({SPIN!r}, {{}}))
thread.start(); thread.join(); print(); input()""",
    "a child": f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {SPIN + "print(flush=True); input()"!r}])""",
}


@pytest.mark.parametrize("worker", WORK)
def test_the_work_of_children_and_of_ended_threads_counts(worker: str) -> None:
    command = [sys.executable, "-c", WORK[worker]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"
    assert cpu_seconds(process.pid) >= 0.1
    first, *children = process_tree(process.pid)
    assert (first, len(children)) == (process.pid, worker == "a child")
    process.communicate("\n")
    assert cpu_seconds(process.pid) == 0.0


def test_bytes_per_key_come_from_the_manifest(tiny_bundle_folder: Path) -> None:
    row = bytes_row(tiny_bundle_folder)
    assert row.figures["keys"] == 14
    assert row.figures["allowed"] == 300 + 4 * 9 / 14  # nine votes, fourteen keys
    assert row.met == (row.figures["index"] + row.figures["values"] <= row.figures["allowed"])
