"""The load tests themselves: the server they start, the clients, the commands."""

import json
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadtests.clients.closed_loop import saturate_in_this_process
from loadtests.clients.connection import (
    Connection,
    RequestFailed,
    get,
    predict,
    put_label,
    require,
)
from loadtests.clients.open_loop import Stream, drive_in_this_process
from loadtests.load import run_locust
from loadtests.measure.footprint import resident
from loadtests.measure.traffic import Load
from loadtests.measure.writing import measure_while_writing, post_single_labels
from loadtests.queries import distinct
from tests.support import commands
from training.experiments.service_process import Server, ServerFailed, running_server

run = partial(commands.run, seconds=240)


@pytest.fixture(scope="module")
def loaded(tiny_bundle_folder: Path) -> Iterator[Server]:
    """A server that several tests send requests and labels to."""
    with running_server(tiny_bundle_folder) as server:
        yield server


@pytest.fixture
def connection(loaded: Server) -> Iterator[Connection]:
    """A connection to the shared server."""
    connection = Connection(loaded.port)
    yield connection
    connection.close()


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


def test_the_open_loop_counts_from_the_intended_start(loaded: Server) -> None:
    requests = [predict(f"boots {number}") for number in range(20)]
    # All are due at once: the last one is answered after the others, and its latency shows that.
    stream = Stream(name="burst", requests=requests, starts=[0.0] * 20)
    burst = drive_in_this_process(loaded.port, [stream])["burst"]
    assert len(burst.latencies) == len(burst.late) == 20
    assert burst.failures == {}
    assert max(burst.latencies) >= max(burst.late)


def test_the_open_loop_keeps_its_streams_apart_and_counts_failures(loaded: Server) -> None:
    good = Stream(name="good", requests=[predict("tent")] * 3, starts=[0, 0.01, 0.5])
    bad = Stream(name="bad", requests=[get("/labels/nothing")] * 3, starts=[0, 0.01, 0.25])
    outcomes = drive_in_this_process(loaded.port, [good, bad])
    assert len(outcomes["good"].latencies) == 3
    assert outcomes["bad"].failures == {"404": 3}


def test_the_closed_loop_uses_every_request_once(loaded: Server) -> None:
    requests = [predict(f"tent {number}") for number in range(30)]
    reached = saturate_in_this_process(loaded.port, requests, connections=3, seconds=30)
    assert len(reached.latencies) == 30
    with pytest.raises(RequestFailed, match="404"):
        saturate_in_this_process(loaded.port, [get("/labels/nothing")], connections=1, seconds=1)


def test_labels_posted_during_predictions_are_all_written(
    loaded: Server, connection: Connection
) -> None:
    load = Load(rate=20, label_rate=20, seconds=1, seed=0)
    texts = distinct([f"good {number}" for number in range(500)], seed=0)
    before = require(connection.ask(get("/info")))["version"]
    measured = measure_while_writing(loaded, texts, load, rounds=2)
    posted = post_single_labels(loaded, texts, labels=11)
    after = require(connection.ask(get("/info")))["version"]
    assert measured.failures == {}
    assert len(measured.labels) > 0
    assert after - before == len(measured.labels) + len(posted)


def test_the_server_takes_labels_from_the_client(connection: Connection) -> None:
    require(connection.ask(put_label("sled", "wooden sled", ["sledge"])))
    assert require(connection.ask(get("/labels/sled")))["queries"] == ["sledge"]
    with pytest.raises(RequestFailed, match="status 404"):
        require(connection.ask(get("/labels/nothing")))


def test_the_memory_of_a_process_is_read(loaded: Server) -> None:
    assert resident(loaded.pid).private > 10


# Commands -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_latency_writes_json_table_and_plot(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    short = ("--seconds", "1", "--rate", "20", "--label-rate", "20")
    ended = run("loadtests.latency", "--bundle", tiny_bundle_folder, "--out", out, *short)
    assert ended.returncode == 0, ended.stderr
    report = json.loads((out / "latency.json").read_text())
    assert len(report["rows"]) == 10
    assert all(row["goal"] and row["measured"] for row in report["rows"])
    assert (out / "latency.md").read_text().count("\n| ") == 11
    assert (out / "latency.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_write_share_measures_writes_beside_busy_cores(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    short = ("--seconds", "1", "--labels", "5", "--no-seals")
    ended = run("loadtests.write_share", "--bundle", tiny_bundle_folder, "--out", out, *short)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((out / "write_share.json").read_text())["rows"]
    assert [row["figures"].get("failures") for row in rows] == [None, None, {}, {}, {}]
    assert len(rows[0]["figures"]["milliseconds"]) == 3
    assert len(rows[1]["figures"]["processor_ms"]) == 5
    assert rows[2]["figures"]["queries_per_second"] > 0
    assert (out / "write_share.md").read_text().count("\n| ") == 6


@pytest.mark.slow
def test_overload_reports_every_kind_of_overload(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path, "--factors", "4")
    short = ("--seconds", "0.5", "--variant-seconds", "0.5", "--recovery-seconds", "0.5")
    short += ("--saturation-seconds", "1")
    ended = run("loadtests.overload", "--bundle", tiny_bundle_folder, *out, *short)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "overload.json").read_text())["rows"]
    saturation = [row["figures"] for row in rows if row["what"].startswith("saturation")]
    assert len(saturation) == 2  # of single queries, and of 64 a request
    assert all(figures["per_second"] > 0 < figures["processor_ms"] for figures in saturation)
    overload = [row["figures"] for row in rows if row["what"].startswith("4x saturation")]
    answered, refused, _health, processor = (overload[kind::4] for kind in range(4))
    assert len(processor) == len(answered) == 4
    assert all(figures["per_second"] > 0 for figures in answered)
    assert all("broken" not in figures["statuses"] for figures in refused)
    assert "left" in refused[3]["statuses"]
    assert (tmp_path / "overload.md").read_text().count("\n| ") == 1 + len(rows)


@pytest.mark.parametrize(
    "command",
    [
        "latency",
        "overload",
        "write_share",
        "scale",
        "opponents",
        "parts.index_libraries",
        "parts.items",
        "parts.item_search",
        "parts.reranking",
    ],
)
def test_a_missing_bundle_is_one_line(command: str, tmp_path: Path) -> None:
    out = () if command == "parts.index_libraries" else ("--out", tmp_path)
    ended = run(f"loadtests.{command}", "--bundle", tmp_path / "nowhere", *out)
    assert ended.returncode == 2
    assert "manifest.json is missing" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")
def test_many_labels_are_measured_for_each_number(tmp_path: Path) -> None:
    ended = run(
        "loadtests.parts.many_labels", "--out", tmp_path, "--labels", "2000", "4000", "--steps", "2"
    )
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "many_labels.json").read_text())["rows"]
    assert [row["figures"]["labels"] for row in rows] == [2000, 4000]
    assert all(row["figures"]["step_ms"] > 0 and row["figures"]["gigabytes"] > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["encoded", "drawn"])
def test_scale_measures_each_size_and_fits_laws(
    tiny_bundle_folder: Path, tmp_path: Path, vectors: str
) -> None:
    short = ("--seconds", "1", "--rate", "20", "--recall-queries", "5", "--vectors", vectors)
    out = ("--out", tmp_path, "--sizes", "20", "200")
    ended = run("loadtests.scale", "--bundle", tiny_bundle_folder, *out, *short)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "scale.json").read_text())["rows"]
    assert [row["figures"]["keys"] for row in rows[:2]] == [20, 200]
    assert all(row["figures"]["failures"] == {} for row in rows[:2])
    assert all("exponent" in row["figures"] for row in rows[2:])
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_load_passes_within_its_limits(tiny_bundle_folder: Path) -> None:
    short = ("--seconds", "2", "--users", "3")
    generous = ("--max-p50", "5000", "--max-p99", "5000")
    ended = run("loadtests.load", "--bundle", tiny_bundle_folder, *short, "--", *generous)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "PASSED" in ended.stdout


def test_locust_fails_beyond_a_limit(
    loaded: Server, tiny_bundle_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--bundle", str(tiny_bundle_folder), "--users", "3", "--run-time", "3s"]
    options += ["--insert-weight", "0", "--max-p50", "0", "--max-p99", "5000"]
    assert run_locust(loaded.url, options, timeout=60) == 1
    assert "limit exceeded: p50 of /predict" in "".join(capfd.readouterr())


def test_load_reports_a_server_that_does_not_start(tmp_path: Path) -> None:
    ended = run("loadtests.load", "--bundle", tmp_path / "nowhere", "--seconds", "2")
    assert ended.returncode == 2
    assert "manifest.json is missing" in ended.stdout


@pytest.mark.slow
def test_versions_compares_a_checkout_with_the_present_source(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    checkout = Path(__file__).parents[2]
    result = run(
        "loadtests.versions",
        *("--before", checkout, "--before-bundle", tiny_bundle_folder),
        *("--bundle", tiny_bundle_folder, "--out", tmp_path / "out"),
        *("--rounds", "1", "--queries", "20", "--labels", "5", "--seconds", "1", "--rate", "20"),
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "out/versions.json").read_bytes())["rows"]
    assert all(row["figures"]["before"][0] > 0 < row["figures"]["after"][0] for row in rows)


def test_versions_refuses_a_folder_that_is_no_checkout(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    result = run(
        "loadtests.versions",
        *("--before", tmp_path, "--before-bundle", tiny_bundle_folder),
        *("--bundle", tiny_bundle_folder, "--out", tmp_path / "out"),
    )
    assert result.returncode != 0
    assert "it is no checkout" in result.stderr
