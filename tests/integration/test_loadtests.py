"""The load tests themselves: the server they start, the clients, queries, recall, the commands."""

import json
import subprocess
import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from loadtests.clients.closed_loop import saturate_here
from loadtests.clients.connection import Connection, RequestFailed, get, predict, put_label, require
from loadtests.clients.open_loop import Stream, drive_here, poisson_starts
from loadtests.measure.footprint import bytes_a_key, resident
from loadtests.measure.latency_summary import Summary
from loadtests.measure.recall import measure_recall, recalls
from loadtests.measure.traffic import Load, single_labels, while_writing
from loadtests.queries import distinct, read_queries, zipf
from loadtests.results.result_table import Report, Row
from service.core.bundle.bundle import Bundle
from service.core.errors import InvalidInput
from service.core.memory.knowledge_memory import KnowledgeMemory
from training.experiments.service_process import ServerFailed, running_server


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=120
    )


# The server -----------------------------------------------------------------------------------


def test_the_server_is_ready_inside_the_block_and_gone_after_it(tiny_bundle_folder: Path) -> None:
    with running_server(tiny_bundle_folder) as server:
        connection = Connection(server.port)
        assert require(connection.ask(get("/health/ready")))["status"] == "ready"
        connection.close()
        assert server.process.poll() is None
    assert server.process.returncode == 0
    assert not server.state.exists()


def test_a_server_that_cannot_start_fails_early_with_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match=r"manifest\.json is missing"),
        running_server(tmp_path / "nowhere"),
    ):
        pytest.fail("it must not start")


def test_the_server_is_stopped_when_the_block_fails(tiny_bundle_folder: Path) -> None:
    servers = []
    with pytest.raises(KeyError), running_server(tiny_bundle_folder) as server:
        servers.append(server)
        raise KeyError
    assert servers[0].process.returncode == 0


# Clients --------------------------------------------------------------------------------------


def test_the_open_loop_counts_from_the_intended_start(tiny_bundle_folder: Path) -> None:
    requests = [predict(f"boots {number}") for number in range(20)]
    with running_server(tiny_bundle_folder) as server:
        # All due at once: the last is answered after the others, and must say so.
        stream = Stream(name="burst", requests=requests, starts=[0.0] * 20)
        burst = drive_here(server.port, [stream])["burst"]
    assert len(burst.latencies) == len(burst.late) == 20
    assert burst.failures == {}
    assert max(burst.latencies) >= max(burst.late)


def test_the_open_loop_keeps_its_streams_apart_and_counts_failures(
    tiny_bundle_folder: Path,
) -> None:
    with running_server(tiny_bundle_folder) as server:
        outcomes = drive_here(
            server.port,
            [
                Stream(name="good", requests=[predict("tent")] * 3, starts=[0, 0.01, 1]),
                Stream(name="bad", requests=[get("/labels/nothing")] * 3, starts=[0, 0.01, 0.5]),
            ],
        )
    assert len(outcomes["good"].latencies) == 3
    assert outcomes["bad"].failures == {"404": 3}


def test_the_closed_loop_uses_every_request_once(tiny_bundle_folder: Path) -> None:
    requests = [predict(f"tent {number}") for number in range(30)]
    with running_server(tiny_bundle_folder) as server:
        found = saturate_here(server.port, requests, connections=3, seconds=30)
        with pytest.raises(RequestFailed, match="404"):
            saturate_here(server.port, [get("/labels/nothing")], connections=1, seconds=1)
    assert len(found.latencies) == 30


def test_labels_beside_predictions_are_all_written(tiny_bundle_folder: Path) -> None:
    load = Load(rate=20, label_rate=20, seconds=1, seed=0)
    texts = distinct([f"good {number}" for number in range(500)], seed=0)
    with running_server(tiny_bundle_folder) as server:
        found = while_writing(server, texts, load, rounds=2)
        posted = single_labels(server, texts, count=11)
        connection = Connection(server.port)
        shown = require(connection.ask(get("/info")))
        connection.close()
    assert found.failures == {}
    assert shown["version"] == len(found.labels) + len(posted)


def test_arrivals_are_poisson() -> None:
    starts = poisson_starts(rate=100, seconds=200, seed=1)
    gaps = np.diff(starts)
    assert len(starts) == 20_000
    assert np.mean(gaps) == pytest.approx(0.01, rel=0.05)
    assert np.std(gaps) == pytest.approx(0.01, rel=0.05)
    assert poisson_starts(rate=100, seconds=2, seed=1) == starts[:200]


# Queries --------------------------------------------------------------------------------------


def test_queries_come_from_the_bundle_or_a_file(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    own = read_queries(tiny_bundle_folder)
    assert {"trail footwear", "camping tent"} <= set(own)
    lines, titles = tmp_path / "queries.txt", tmp_path / "queries.json"
    lines.write_text("one\ntwo\n\none\n")
    titles.write_text('{"title": "one", "uid": "1"}\n{"title": "two"}\n')
    assert read_queries(tmp_path, lines) == read_queries(tmp_path, titles) == ["one", "two"]
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InvalidInput, match="holds no query"):
        read_queries(tmp_path, tmp_path / "empty.txt")


def test_distinct_queries_repeat_only_after_all_were_asked() -> None:
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


# What is measured -----------------------------------------------------------------------------


def test_a_summary_is_in_milliseconds() -> None:
    found = Summary.of([number / 1000 for number in range(1, 102)])
    assert (found.count, found.p50, found.p99, found.maximum) == pytest.approx((101, 51, 100, 101))
    with pytest.raises(ValueError, match="no request"):
        Summary.of([])


def test_recall_counts_what_was_found_and_no_row_twice(trigram_bundle: Bundle) -> None:
    view = KnowledgeMemory(trigram_bundle).view
    queries = np.asarray(trigram_bundle.keys[:3], np.float32)
    assert measure_recall(view, queries, depth=4).mean == 1.0
    similarities, rows = view.retrieve(queries, depth=4, exact=True)
    worse = rows.copy()
    worse[0, 1:] = worse[0, 0]  # one row four times
    worse[1, 2:] = -1
    assert list(recalls(view, queries, worse, rows, similarities)) == [0.25, 0.5, 1.0]


def test_the_footprint_of_a_process_and_a_bundle(tiny_bundle_folder: Path) -> None:
    with running_server(tiny_bundle_folder) as server:
        assert resident(server.pid).own > 10
    found = bytes_a_key(tiny_bundle_folder, allowance=300)
    assert found.keys == 14
    assert found.allowed == 300 + 4 * 9 / 14  # nine votes over fourteen keys
    assert found.total == found.index + found.values


def test_a_report_is_json_and_a_table(tmp_path: Path) -> None:
    rows = [
        Row(what="speed", goal="<= 1", found="2", met=False, figures={"n": 2}),
        Row(what="size", goal="-", found="3"),
    ]
    Report(title="Title", settings={"seed": 0}, environment={"cores": 2}, rows=rows).write(
        tmp_path / "new", "report"
    )
    assert json.loads((tmp_path / "new/report.json").read_text())["rows"][0]["figures"] == {"n": 2}
    text = (tmp_path / "new/report.md").read_text()
    assert "| speed | <= 1 | 2 | NOT MET |" in text
    assert "| size | - | 3 | - |" in text


# Commands -------------------------------------------------------------------------------------


def test_latency_writes_json_table_and_plot(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    short = ("--seconds", "1", "--rate", "20", "--label-rate", "20")
    ended = run("loadtests.latency", "--bundle", tiny_bundle_folder, "--out", out, *short)
    assert ended.returncode == 0, ended.stderr
    report = json.loads((out / "latency.json").read_text())
    assert len(report["rows"]) == 10
    assert all(row["goal"] and row["found"] for row in report["rows"])
    assert (out / "latency.md").read_text().count("\n| ") == 11
    assert (out / "latency.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["latency", "index_libraries"])
def test_a_missing_bundle_is_one_line(command: str, tmp_path: Path) -> None:
    out = ("--out", tmp_path) if command == "latency" else ()
    ended = run(f"loadtests.{command}", "--bundle", tmp_path / "nowhere", *out)
    assert ended.returncode == 2
    assert "manifest.json is missing" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")
def test_many_labels_are_measured_each_number_alone(tmp_path: Path) -> None:
    ended = run(
        "loadtests.many_labels", "--out", tmp_path, "--labels", "2000", "4000", "--steps", "2"
    )
    assert ended.returncode == 0, ended.stderr
    figures = [
        row["figures"] for row in json.loads((tmp_path / "many_labels.json").read_text())["rows"]
    ]
    assert [one["labels"] for one in figures] == [2000, 4000]
    assert all(one["step_ms"] > 0 and one["gigabytes"] > 0 for one in figures)


GENEROUS = ("--max-p50", "5000", "--max-p99", "5000")


@pytest.mark.parametrize(
    ("limits", "status", "said"),
    [
        (GENEROUS, 0, "PASSED"),
        (("--max-p50", "0", "--max-p99", "5000"), 1, "limit exceeded: p50 of /predict"),
    ],
)
def test_load_holds_the_run_to_its_limits(
    tiny_bundle_folder: Path, limits: tuple[str, ...], status: int, said: str
) -> None:
    short = ("--seconds", "2", "--users", "3")
    ended = run("loadtests.load", "--bundle", tiny_bundle_folder, *short, "--", *limits)
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert said in ended.stdout + ended.stderr


def test_load_says_why_there_is_no_server(tmp_path: Path) -> None:
    ended = run("loadtests.load", "--bundle", tmp_path / "nowhere", "--seconds", "2")
    assert ended.returncode == 2
    assert "manifest.json is missing" in ended.stdout


def test_the_server_takes_labels_from_the_client(tiny_bundle_folder: Path) -> None:
    with running_server(tiny_bundle_folder) as server:
        connection = Connection(server.port)
        require(connection.ask(put_label("sled", "wooden sled", ["sledge"])))
        assert require(connection.ask(get("/labels/sled")))["queries"] == ["sledge"]
        with pytest.raises(RequestFailed, match="status 404"):
            require(connection.ask(get("/labels/nothing")))
        connection.close()
